"""What the views show, made of what was observed. Findings are the doctor's, in its words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from namesrv_api.v1 import admin_service_pb2 as admin

from groundwork.printable import counted
from groundwork.topic_names import kind_of, listing_order
from nsctl.commands import doctor
from nsctl.commands.compare import Held
from nsctl.commands.findings import Code, Finding, Severity
from nsctl.compare import BrokerKey, Difference, differences, in_force, intent_key
from nsctl.console.observer import Observation, Tables
from nsctl.health import INVOLUNTARY, LATE_SHARE
from nsctl.writable import GroupKey, drains

SETTLED_SECONDS = 5.0
"""A younger difference is not shown: a broker registers with one name server after the other."""
SAME_MILLIS = 2_000
"""Two name servers that say the same within this time speak of the same event."""
TONES = {Severity.PROBLEM: "bad", Severity.WARNING: "warn", Severity.INFO: "idle"}
DISAGREE = Finding(Code.NAME_SERVERS_DISAGREE, "", "they do not hold the same brokers and intents", "see `nsctl diff`")

Row = dict[str, Any]
View = tuple[Observation, Tables]


class Word(NamedTuple):
    """A state in a word; good, warn, bad or idle; and the command that helps."""

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


def shown(seen: Sequence[Observation]) -> list[View]:
    """Those whose tables count: what one said before it became unreachable counts only while none answers."""
    known = [(view, view.tables) for view in seen if view.tables is not None]
    return [pair for pair in known if pair[0].reachable] or known


class Differences:
    """What differs between the name servers that answer, and since when."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[Difference, float]] = {}

    def note(self, seen: Sequence[Observation], now: float) -> None:
        views = [view.tables if view.reachable else None for view in seen]
        found = differences([None if one is None else one.reported for one in views])
        found += differences([None if one is None else in_force(one.intents) for one in views], "not in force")
        self._since = {one.subject: (one, self._since.get(one.subject, (one, now))[1]) for one in found}

    def settled(self, now: float) -> list[tuple[Difference, float]]:
        """Differences that have lasted, and since when."""
        return [(one, since) for one, since in self._since.values() if now - since >= SETTLED_SECONDS]


def findings(seen: Sequence[Observation], now: float, *, differ: bool) -> list[Row]:
    """What is wrong, the worst first; what several name servers say is told once."""
    views = shown(seen)
    said = [(view.name, view.silence) for view in seen if view.silence]
    for view, tables in views:
        status, told = (view.status, view.diagnostics) if view.reachable else (None, None)
        of_process = doctor.check_diagnostics("", told) if told else ()
        of_status = [*doctor.check_status("", status), *doctor.check_clock("", tables.clock)] if status else []
        said += [(view.name, one) for one in (*tables.findings, *of_process, *of_status)]
    lives = [live for _, live in _brokers(views).values()]
    lost = [row["entry"] for row in as_one((view.name, one) for view in seen for one in view.latest if _is_loss(one))]
    recent = [entry for entry in lost if entry.applied_at_millis > now * 1000 - doctor.LOSS_MILLIS]
    checked = [doctor.Checked(one.status, [], Held({}, None)) for one in seen if one.status and one.reachable]
    together = [
        *doctor.check_liveness("", lives, now),
        *doctor.check_entries("", recent, [live for live in lives if not live.unconfirmed]),
        *doctor.check_intents("", intents(views), now * 1000),
        *doctor.together(checked),
        *([DISAGREE] if differ else []),
    ]
    merged: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for name, one in [*said, *(("", one) for one in together)]:
        same = (one.code.name, re.sub(r"T[0-9:.]+Z", "", one.what), one.do)  # times differ by some milliseconds
        merged.setdefault(same if name else one, (one, []))[1].append(name)
    rows = [finding_row(one, ", ".join(names)) for one, names in merged.values()]
    return sorted(rows, key=lambda row: (row["tone"] != "bad", row["finding"].order))


def finding_row(one: Finding, about: str = "") -> Row:
    # A planned drain that leaves topics without a writable queue is red, too: nobody can send.
    tone = "bad" if one.code is Code.TOPICS_DRAINED else TONES[one.code.severity]
    parts = re.split(r"`(nsctl [^`]+)`", one.do)  # every second one is a command
    return {**one.row(), "finding": one, "tone": tone, "about": about, "parts": parts}


def _is_loss(entry: admin.AuditEntry) -> bool:
    return entry.removal_reason in INVOLUNTARY


def intents(views: Sequence[View]) -> list[admin.Intent]:
    """Intents in force, each once."""
    return list({intent_key(one): one for _, tables in views for one in tables.intents}.values())


def state_of(view: Observation) -> Word:
    """How a name server is."""
    if view.silence:
        return Word("unreachable", "bad", command("status"))
    if view.status is None:
        return Word("connecting", "idle")
    return Word("ready", "good") if view.status.warm else Word("warming", "warn", command("brokers", "--unconfirmed"))


def _brokers(views: Sequence[View]) -> dict[BrokerKey, tuple[list[View], Any]]:
    """Each broker with the name servers that hold it, as the one says that heard of it last."""
    found: dict[BrokerKey, tuple[list[View], Any]] = {}
    for view in views:
        for key, live in view[1].lives.items():
            holders, latest = found.get(key, ([], live))
            newer = live.last_update_timestamp_millis > latest.last_update_timestamp_millis
            found[key] = ([*holders, view], live if newer else latest)
    return found


def broker_rows(seen: Sequence[Observation], now: float) -> list[Row]:
    """A row for each broker that a name server holds, by cluster, name and id."""
    views = shown(seen)
    live_now = LIVE if any(view.reachable for view in seen) else WAS_LIVE
    return [
        {"key": key, "live": live, "words": list(_words(key, live, holders, views, now)) or [live_now]}
        for key, (holders, live) in sorted(_brokers(views).items())
    ]


def _words(key: BrokerKey, live: Any, holders: list[View], views: list[View], now: float) -> Iterable[Word]:
    having = [tables.lives[key] for _, tables in holders]
    if all(one.unconfirmed for one in having):
        guarded = any(view.status and view.status.guard_tripped for view, _ in holders)
        remedy = of_group("guard confirm-loss", key) if guarded else command("brokers", "--unconfirmed")
        yield Word("unconfirmed", "warn", remedy)
    elif all(one.HasField("doubt_ends_at_millis") for one in having):
        yield Word("doubted", "warn", of_group("drain", key))
    elif now * 1000 - live.last_update_timestamp_millis > live.heartbeat_timeout_millis * LATE_SHARE:
        yield Word("silent", "warn", of_group("drain", key))
    if missing := [view.name for view, tables in views if key not in tables.lives]:
        yield Word(f"not at {', '.join(missing)}", "warn", command("diff"))


def group_rows(seen: Sequence[Observation], now: float) -> list[Row]:
    """A row for each broker group, the worst first."""
    views, groups = shown(seen), dict[GroupKey, list[Row]]()
    for row in broker_rows(seen, now):
        groups.setdefault(GroupKey(*row["key"][:2]), []).append(row)
    rows = []
    for key, brokers in groups.items():
        words = [word for row in brokers for word in row["words"] if word not in {LIVE, WAS_LIVE}]
        if all(row["key"].id != 0 for row in brokers):
            words.insert(0, Word("no master", "bad", of_group("broker", key)))
        if at := [view.name for view, tables in views if key in drains(tables.intents)]:
            where = "" if len(at) == len(views) else f" at {', '.join(at)} only"
            words.append(Word(f"drained{where}", "warn", of_group("restore", key)))
        last = max(row["live"].last_update_timestamp_millis for row in brokers)
        rows.append(
            {"key": key, "brokers": brokers, "words": list(dict.fromkeys(words)) or brokers[0]["words"], "last": last}
        )
    return sorted(rows, key=lambda row: (min(word.tone for word in row["words"]) == "good", row["key"]))


def topic_rows(seen: Sequence[Observation], contains: str, only: str) -> list[Row]:
    """Topics with a text in their name that are ``differing``, ``unwritable`` or any; those of applications first."""
    views, rows = shown(seen), []
    named = frozenset[str]().union(*(tables.named for _, tables in views))
    names = {name for _, tables in views for name in tables.topics if contains in name.casefold()}
    for name in sorted(names, key=lambda name: listing_order(name, named)):
        missing = [view.name for view, tables in views if name not in tables.topics]
        unwritable = any(name in tables.unwritable for _, tables in views)
        words = [Word("no writable queue", "bad", command("explain", "--", name))] if unwritable else []
        words += [Word(f"not at {', '.join(missing)}", "warn", command("diff"))] if missing else []
        if {"differing": bool(missing), "unwritable": unwritable}.get(only, True):
            rows.append({"name": name, "kind": kind_of(name, named), "words": words})
    return rows


def as_one(entries: Iterable[tuple[str, admin.AuditEntry]]) -> list[Row]:
    """Entries of several journals, each with its name server, newest first; those that say the same are one."""
    rows, last = list[Row](), dict[tuple[str, ...], Row]()
    for name, entry in sorted(entries, key=lambda pair: (-pair[1].applied_at_millis, pair[0])):
        caller = re.sub(r"\Aipv[46]:(.+):[0-9]+\Z", r"\1", entry.caller)  # its port is another one at each
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
    if not brokers:
        return Word(f"No broker is registered with {counted(len(seen), 'name server')}", "warn")
    warned = sum(row["tone"] == "warn" for row in found)
    return Word(f"{fleet}: {counted(warned, 'warning') if warned else 'all is well'}", "warn" if warned else "good")
