"""The journals of all name servers as one, newest first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from namesrv_api.v1 import admin_service_pb2

from groundwork.grpc_errors import CallError
from nsctl.console.observer import Fleet

# The journals of all name servers as one, newest first.

SAME_MILLIS = 2_000
"""Two name servers that say the same within this time speak of the same event: nobody's clock is better than that."""

Entry = dict[str, Any]
Json = dict[str, Any]

_NAME = r"[%|a-zA-Z0-9_.-]+"
_BROKER = re.compile(
    rf"(?P<broker>{_NAME})(?P<told> \([^();]*, id [0-9]+\))? of (?P<cluster>{_NAME})(?(told)|(?=[:;]|\Z))"
)
"""A broker of a summary; or its group, which stands for itself or before a colon."""
_TOPICS = re.compile(rf"topics? (?:put|lost)[^();:]*\((?P<names>{_NAME}(?:, (?!and [0-9,]+ more){_NAME})*)")
_LISTED = re.compile(rf"(?<![^ ]){_NAME}(?=,|\Z)")

_QUOTED = re.compile(r"(?P<quote>['\"])(?:(?!(?P=quote))[^\\]|\\.?)*(?:(?P=quote)|\Z)")
"""Free text of a summary, as Python's ``repr`` quotes it: keys and values of the KV configuration, settings.
A summary that was cut may end within it."""

_ADDRESS = re.compile(r"\Aipv[46]:(.+):[0-9]+\Z")
"""A caller without a name. Its port is another one for each name server, and tells people nothing."""


def caller_words(caller: str) -> str:
    """A caller for people: its name, or its address without the port."""
    return _ADDRESS.sub(r"\1", caller)


def mentions(summary: str) -> list[Json]:
    """The brokers and topics that a summary names, each with where its name begins, for links.

    Quoted text names none: a client may have written the words of a link into it.
    """
    summary = _QUOTED.sub(lambda quoted: "'" * len(quoted[0]), summary)
    found: list[Json] = [
        {"at": match.start("broker"), "broker": match["broker"], "cluster": match["cluster"]}
        for match in _BROKER.finditer(summary)
    ]
    for listed in _TOPICS.finditer(summary):
        found += [
            {"at": listed.start("names") + match.start(), "topic": match[0]}
            for match in _LISTED.finditer(listed["names"])
        ]
    return sorted(found, key=lambda mention: int(mention["at"]))


def entry_json(entry: admin_service_pb2.AuditEntry, server: int) -> Entry:
    """An entry as the page gets it: ``servers`` are numbers of those that have it, ``positions`` epoch and revision."""
    return {
        "at": entry.applied_at_millis,
        "cause": entry.cause,
        "caller": caller_words(entry.caller),
        "summary": entry.summary,
        "mentions": mentions(entry.summary),
        "comment": entry.comment,
        "servers": [server],
        "positions": [f"{entry.epoch} {entry.revision}"],  # a revision comes again after a restart
    }


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Entries sorted, newest first, those that say the same as one."""
    found: list[Entry] = []
    last: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda entry: (-entry["at"], entry["servers"])):
        key = (entry["cause"], entry["caller"], entry["summary"], entry["comment"])
        other = last.get(key)
        if other is None or other["at"] - entry["at"] > SAME_MILLIS or entry["servers"][0] in other["servers"]:
            last[key] = entry
            found.append(entry)
        else:
            both = sorted(
                zip(other["servers"] + entry["servers"], other["positions"] + entry["positions"], strict=True)
            )
            other["servers"], other["positions"] = [server for server, _ in both], [position for _, position in both]
    return found


def cut_at(entries: Sequence[Entry], whole_after: int) -> tuple[list[Entry], int | None]:
    """What can be shown of several first pages, and where the next one ends.

    Args:
        entries: Entries of all name servers.
        whole_after: The oldest time of a page that was not the last one, or 0: what is older may lack entries, and so
            may that millisecond itself.

    Returns:
        The entries that are complete, and the time before which the next page begins; None if there is none.
    """
    whole = [entry for entry in entries if entry["at"] > whole_after]
    if whole_after == 0:
        return whole, None
    if whole:
        return whole, whole_after + 1
    # More entries in one millisecond than a page holds: what there is of it, and on with the one before.
    return [entry for entry in entries if entry["at"] == whole_after], whole_after


# A page of the journals, asked of all name servers.

JOURNAL_PAGE = 50
"""Entries that are asked of each name server for one page: what somebody reads before asking for more."""


def problem_json(error: CallError) -> Json:
    """A failed call as the page gets it."""
    return {"reason": error.reason, "message": error.error.message, "unreachable": error.unreachable}


async def journal(
    fleet: Fleet, topic: str | None, broker: str | None, before_millis: int | None
) -> tuple[list[Entry], int | None, list[Json | None]]:
    """A page of all journals as one.

    Returns:
        The entries, newest first; what to pass as ``before_millis`` for the next page, None after the last; and what
        went wrong at each name server, None where nothing did.
    """
    request = admin_service_pb2.ListAuditEntriesRequest(
        topic=topic, broker_name=broker, to_millis=before_millis, page_size=JOURNAL_PAGE
    )
    answers = await fleet.each(lambda server: server.call("ListAuditEntries", request))
    entries: list[Entry] = []
    whole_after = 0
    for index, answer in enumerate(answers):
        if isinstance(answer, admin_service_pb2.ListAuditEntriesResponse):
            entries += [entry_json(entry, index) for entry in answer.entries]
            if answer.next_page_token and answer.entries:
                whole_after = max(whole_after, answer.entries[-1].applied_at_millis)
    complete, before = cut_at(entries, whole_after)
    problems = [problem_json(answer) if isinstance(answer, CallError) else None for answer in answers]
    return merged(complete), before, problems
