"""Invariants of the pipeline's log: each change of each name server that it has read, row for row, once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.history import Record, of_kind
from tests.faults.invariants.timeline import Timeline

Life = tuple[str, str]
"""Name server and epoch."""

Rows = dict[int, list[str]]
"""By revision."""


@dataclass
class Told:
    """What a name server told of one of its lives."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    """After and up to which revisions."""
    rows: Rows = field(default_factory=lambda: defaultdict(list))

    def add(self, record: Record) -> Iterator[int]:
        """Takes what was read once, perhaps again; revisions of which something else is told now."""
        self.spans.append((record["after"], record["up_to"]))
        rows: Rows = defaultdict(list)
        for revision, *row in record["rows"]:
            rows[revision].append(repr(row))
        for revision, told in rows.items():
            if self.rows.setdefault(revision, told) != told:
                yield revision

    def knows(self, revision: int) -> bool:
        """Whether the changes of a revision were read."""
        return any(after < revision <= up_to for after, up_to in self.spans)


def check_pipeline(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """The log has each change that was told, and nothing else, and ends where the name servers do.

    Two gaps are no defects; the pipeline says that changes are missing there, and its tables are whole after it. A life
    may begin with two snapshots, where a restart met a batch that was planned already. And a name server may be lost
    after a batch was planned, which leaves a hole until it is back; a snapshot fills it.
    """
    del timeline
    told: dict[Life, Told] = defaultdict(Told)
    for record in of_kind(records, "changes"):
        life = record["server"], record["epoch"]
        for revision in told[life].add(record):
            yield f"pipeline: {life[0]}, epoch {life[1]}: revision {revision} is told in two ways"
    ingested = {(r["server"], r["epoch"]): r["rows"] for r in of_kind(records, "ingested")}
    for (server, epoch), rows in ingested.items():
        for problem in _wrong(rows, told[server, epoch]):
            yield f"pipeline: {server}, epoch {epoch}: {problem}"
    if not ingested:
        return
    for server in sorted({server for server, _ in told}):
        epoch = max(its_epoch for its_server, its_epoch in told if its_server == server)
        last = max((up_to for _, up_to in told[server, epoch].spans), default=0)
        reached = max((row[0] for row in ingested.get((server, epoch), [])), default=0)
        if reached < last:
            yield f"pipeline: {server}: it came to {reached} of epoch {epoch}, and not to {last}"


def _wrong(rows: list[Any], told: Told) -> Iterator[str]:
    changes: Rows = defaultdict(list)
    for revision, from_snapshot, *row in rows:
        if row[0] != "reads" and not from_snapshot:
            changes[revision].append(repr(row))
    keys = Counter((row[0], row[1], row[2], row[3]) for row in rows if row[2] != "reads")
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        yield f"rows are there more than once, {twice[0]} first"
    reads = [(row[4], row[0], row[5][0]) for row in rows if row[2] == "reads"]
    snapshots = sorted(revision for op, revision, _ in reads if op == "snapshot")
    holes = {after for op, _, after in reads if op == "hole"}
    first, last = (snapshots[0], snapshots[-1]) if snapshots else (0, 0)
    second = snapshots[1] if len(snapshots) > 1 else 0
    reached = first
    for after, up_to in sorted((after, up_to) for op, up_to, after in reads if op == "changes"):
        began_twice = reached == first and after <= second
        filled = reached in holes and after <= last
        if after > reached and not began_twice and not filled:
            yield f"what changed from {reached} to {after} is missing"
        for revision in range(after + 1, up_to + 1):
            if told.knows(revision) and sorted(changes[revision]) != sorted(told.rows[revision]):
                yield f"revision {revision} has {changes[revision]}, and {told.rows[revision]} was told"
        reached = max(reached, up_to)
