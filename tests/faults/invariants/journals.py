"""Invariants of journals: whoever comes into a route or leaves it is in the journal, with the reason that is true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.history import Record, of_kind
from tests.faults.invariants.timeline import Answer, Timeline

ENDING_SECONDS = 60.0
"""How long a process may take to end: it unregisters meanwhile."""


@dataclass
class Journal:
    """What a name server's journal told of a group in one life."""

    up_to: int = 0
    """All entries until this revision are known."""
    entries: list[Record] = field(default_factory=list)

    def between(self, after: int, up_to: int) -> list[Record]:
        """The entries after one revision, until another."""
        return [entry for entry in self.entries if after < entry["revision"] <= up_to]


def check_journal(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Between two lookups of which only one has a broker, the journal has an entry about its group that says so.

    If the broker has left, the entry says how many did and why; that it unregistered is said only of one that was asked
    to end.
    """
    journals = _journals(records)
    last: dict[tuple[str, str], Answer] = {}
    for answer in timeline.answers:
        key = answer.server, answer.message.header.epoch
        before = last.get(key)
        last[key] = answer
        if before is None or answer.again:
            continue
        there, was_there = answer.brokers(), before.brokers()
        for name in sorted(there ^ was_there):
            journal = journals[*key, name.rpartition("-")[0]]
            if answer.message.header.revision <= journal.up_to:
                entries = journal.between(before.message.header.revision, answer.message.header.revision)
                problem = _problem(name, entries, timeline, answer, has_left=name in was_there)
                if problem:
                    yield f"journal: {problem}: {answer.where}"


def _journals(records: list[Record]) -> dict[tuple[str, str, str], Journal]:
    journals: dict[tuple[str, str, str], Journal] = defaultdict(Journal)
    for record in of_kind(records, "journal"):
        journal = journals[record["server"], record["epoch"], record["group"]]
        journal.entries += record["entries"]
        journal.up_to = record["up_to"]
    return journals


def _problem(name: str, entries: list[Record], timeline: Timeline, answer: Answer, *, has_left: bool) -> str:
    if not has_left:
        return "" if entries else f"{name} has come, and there is no entry"
    removals = [entry for entry in entries if entry["removed"]]
    if not removals:
        return f"{name} has left, and there is no entry that says so"
    reasons = {entry["reason"] for entry in removals}
    was_asked = timeline.was_asked_to_end(name, answer.ended - ENDING_SECONDS, answer.ended)
    if reasons == {"UNREGISTERED"} and not was_asked:
        return f"{name} has left, and the journal says that it unregistered"
    return f"{name} has left for no reason" if "UNSPECIFIED" in reasons else ""
