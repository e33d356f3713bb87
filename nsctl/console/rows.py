"""Name servers as they were observed, and the rows of the views. Findings are the doctor's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.endpoints import Endpoint
from namesrv_common.printable import counted
from namesrv_common.topic_names import kind_of, listing_order
from nsctl.commands.compare import Difference, disagreements
from nsctl.commands.doctor import LATE_SHARE, check_intents, together
from nsctl.findings import Code, Finding, Severity, merged
from nsctl.held import BrokerKey, GroupKey, Held, caller_of, drains, group_of, intent_key

SETTLED_SECONDS = 5.0
"""A younger difference is not shown: a broker registers with one name server after the other."""
SAME_MILLIS = 2_000
"""Two name servers that say the same within this time speak of the same event."""
TONES = {Severity.PROBLEM: "bad", Severity.WARNING: "warn", Severity.INFO: "idle"}
RED = {Code.TOPICS_DRAINED, Code.NO_BROKERS}
"""Warnings that are red on the page: nobody can send to these topics, or to any."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """One name server as it was when it was asked last. What it said before it became unreachable is kept."""

    endpoint: Endpoint
    status: pb.GetNamesrvStatusResponse | None = None
    held: Held | None = None
    """As of the last reading."""
    unwritable: frozenset[str] = frozenset()
    """Topics without a writable queue."""
    findings: tuple[Finding, ...] = ()
    """The doctor's findings about it."""
    answered_at_millis: int | None = None
    silence: Finding | None = None
    """Why it does not answer; None while it does."""

    @property
    def reachable(self) -> bool:
        return self.silence is None and self.status is not None

    @property
    def name(self) -> str:
        return self.status.header.namesrv_name if self.status else str(self.endpoint)

    @property
    def lives(self) -> Mapping[BrokerKey, route_data_pb2.BrokerLiveInfo]:
        return self.held.tables.lives if self.held else {}


class Word(NamedTuple):
    """A state in a word, its kind (good, warn, bad or idle), and the command that helps."""

    text: str
    tone: str
    command: str = ""


LIVE, WAS_LIVE = Word("live", "good"), Word("was live", "idle")
"""The second while no name server answers."""


def command(*words: str) -> str:
    """A command of nsctl that can be copied into a shell, whatever a broker calls itself."""
    return f"nsctl {shlex.join(words)}"


def of_group(verb: str, key: Sequence[Any]) -> str:
    """A command about a group."""
    name = ("--", key[1]) if key[1].startswith("-") else (key[1],)
    return command(*verb.split(), f"--cluster={key[0]}", *name)


def shown(seen: Sequence[Observation]) -> list[Observation]:
    """Those whose tables count: what one said before it became unreachable counts only while none answers."""
    known = [view for view in seen if view.held is not None]
    return [view for view in known if view.reachable] or known


class Differences:
    """What differs between the name servers that answer, and since when."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, object], tuple[Difference, float]] = {}

    def note(self, seen: Sequence[Observation], now: float) -> None:
        found = disagreements([view.held if view.reachable else None for view in seen])
        keyed = {(kind, one.subject): one for kind, differing in found.items() for one in differing}
        self._since = {key: (one, self._since.get(key, (one, now))[1]) for key, one in keyed.items()}

    def settled(self, now: float) -> dict[tuple[str, object], tuple[Difference, float]]:
        """Differences that have lasted, and since when, by kind and subject."""
        return {key: told for key, told in self._since.items() if now - told[1] >= SETTLED_SECONDS}


def findings(seen: Sequence[Observation], differing: Iterable[str] = ()) -> list[Row]:
    """What is wrong, the worst first, each once; ``differing`` has the kinds in which name servers differ."""
    said = [(view.name, view.silence) for view in seen if view.silence]
    said += [(view.name, one) for view in shown(seen) for one in view.findings]
    answering = [view.held for view in seen if view.held and view.reachable]
    said += [("", one) for one in together(answering, dict.fromkeys(differing))]
    return sorted(map(finding_row, merged(said)), key=lambda row: row["tone"] != "bad")


def finding_row(one: Finding) -> Row:
    tone = "bad" if one.code in RED else TONES[one.code.severity]
    parts = re.split(r"`(nsctl [^`]+)`", one.do)  # every second one is a command
    return {**one.row(), "tone": tone, "about": ", ".join(one.at), "parts": parts}


def intent_rows(seen: Sequence[Observation], now: float, key: GroupKey | None = None) -> list[Row]:
    """Intents in force, each once, as findings; all, or those about a group."""
    held = [one for view in shown(seen) if view.held for one in view.held.intents or ()]
    about = {intent_key(one): one for one in held if key in (None, group_of(one))}
    return [finding_row(one) for one in check_intents(list(about.values()), now * 1000)]


def state_of(view: Observation) -> Word:
    """How a name server is."""
    if view.silence:
        return Word("unreachable", "bad", command("status"))
    if view.status is None:
        return Word("connecting", "idle")
    return Word("ready", "good") if view.status.warm else Word("warming", "warn", command("brokers", "--unconfirmed"))


def broker_rows(seen: Sequence[Observation], now: float) -> list[Row]:
    """A row for each broker that a name server holds, as the name server says that saw it last."""
    views, found = shown(seen), dict[BrokerKey, list[Observation]]()
    live_now = LIVE if any(view.reachable for view in seen) else WAS_LIVE
    for view in views:
        for key in view.lives:
            found.setdefault(key, []).append(view)
    masters = {GroupKey(*key[:2]) for key in found if key.id == 0}
    drained = [drains(view.held.intents or ()) if view.held else {} for view in views]
    rows = []
    for key, holders in sorted(found.items()):
        group, words = GroupKey(*key[:2]), list[Word]()
        silent, live = min(((_silent_seconds(view, key, now), view.lives[key]) for view in holders), key=itemgetter(0))
        if group not in masters:
            words.append(Word("no master", "bad", of_group("broker", key)))
        if all(view.lives[key].unconfirmed for view in holders):
            guarded = any(view.status and view.status.guard_tripped for view in holders)
            remedy = of_group("guard drop", key) if guarded else command("brokers", "--unconfirmed")
            words.append(Word("unconfirmed", "warn", remedy))
        elif silent > live.heartbeat_timeout_millis / 1000 * LATE_SHARE:
            words.append(Word("silent", "warn", of_group("drain", key)))
        if missing := [view.name for view in views if key not in view.lives]:
            words.append(Word(f"not at {', '.join(missing)}", "warn", command("diff")))
        if at := [view.name for view, groups in zip(views, drained, strict=True) if group in groups]:
            where = "" if len(at) == len(views) else f" at {', '.join(at)} only"
            words.append(Word(f"drained{where}", "warn", of_group("undrain", key)))
        rows.append({"key": key, "live": live, "words": words or [live_now], "last": int((now - silent) * 1000)})
    return rows


def _silent_seconds(view: Observation, key: BrokerKey, now: float) -> float:
    """Time since a name server last saw a broker. Its clock may differ from this machine's."""
    clock = view.held.tables.clock if view.held else None
    ahead = clock.theirs - clock.ended if clock else 0.0
    return now + ahead - view.lives[key].last_update_timestamp_millis / 1000


def group_rows(seen: Sequence[Observation], now: float) -> list[Row]:
    """A row for each broker group, the worst first."""
    groups = dict[GroupKey, list[Row]]()
    for row in broker_rows(seen, now):
        groups.setdefault(GroupKey(*row["key"][:2]), []).append(row)
    rows = []
    for key, brokers in groups.items():
        words = list(dict.fromkeys(word for row in brokers for word in row["words"]))
        told = [word for word in words if word not in {LIVE, WAS_LIVE}] or words
        last = max(row["last"] for row in brokers)
        rows.append({"key": key, "brokers": brokers, "words": told, "last": last})
    return sorted(rows, key=lambda row: (not any(word.command for word in row["words"]), row["key"]))


def topic_rows(seen: Sequence[Observation], contains: str, only: str) -> list[Row]:
    """Topics with a text in their name that are ``differing``, ``unwritable`` or any; those of applications first."""
    views, rows = shown(seen), []
    routes = [(view, view.held.tables.routes) for view in views if view.held]
    named = frozenset[str]().union(*(view.held.tables.named for view in views if view.held))
    names = {name for _, held in routes for name in held if contains in name.casefold()}
    for name in sorted(names, key=lambda name: listing_order(name, named)):
        missing = [view.name for view, held in routes if name not in held]
        unwritable = any(name in view.unwritable for view in views)
        words = [Word("no writable queue", "bad", command("explain", "--", name))] if unwritable else []
        words += [Word(f"not at {', '.join(missing)}", "warn", command("diff"))] if missing else []
        if {"differing": bool(missing), "unwritable": unwritable}.get(only, True):
            rows.append({"name": name, "kind": kind_of(name, named), "words": words})
    return rows


def as_one(entries: Iterable[tuple[str, admin.AuditEntry]]) -> list[Row]:
    """Entries of several journals, each with its name server, newest first; those that say the same are one."""
    rows, last = list[Row](), dict[tuple[str, ...], Row]()
    for name, entry in sorted(entries, key=lambda pair: (-pair[1].applied_at_millis, pair[0])):
        caller = caller_of(entry.caller)
        same = (entry.cause, caller, entry.summary, entry.comment)
        other = last.get(same, {"at": [name]})
        if name in other["at"] or other["entry"].applied_at_millis - entry.applied_at_millis > SAME_MILLIS:
            last[same] = {"entry": entry, "caller": caller, "at": [name]}
            rows.append(last[same])
        else:
            other["at"].append(name)
    return rows


def summary(found: Sequence[Row], seen: Sequence[Observation], brokers: int) -> Word:
    """The fleet in one sentence."""
    fleet = f"{counted(len(seen), 'name server')}, {counted(brokers, 'broker')}"
    if not any(view.reachable for view in seen):
        if not any(view.silence for view in seen):
            return Word("Asking the name servers.", "idle")
        return Word("No name server answers. What is shown is what they said last.", "bad")
    if bad := sum(row["tone"] == "bad" for row in found):
        return Word(f"{fleet}: {counted(bad, 'problem')}", "bad")
    warned = sum(row["tone"] == "warn" for row in found)
    return Word(f"{fleet}: {counted(warned, 'warning') if warned else 'all is well'}", "warn" if warned else "good")
