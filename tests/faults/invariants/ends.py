"""Invariants once the faults have stopped: name servers agree, and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.history import Record, of_kind
from tests.faults.invariants.timeline import Timeline

AGREE_SECONDS = 15.0
"""What pings take to find a lost connection (7 s), one period (3 s, 10 % more), and the rest for a busy machine."""
LEFT_OVER_FILES = 8
"""Connections that may be on their way in or out when descriptors are counted."""
LEFT_OVER_THREADS = 8
"""Pools that gRPC grows and shrinks by itself."""
LEFT_OVER_TASKS = 16
"""Calls that are open when tasks are counted."""
GROWN_KIB = 48 * 1024
"""What a process may have grown by: history of changes, memory that the allocator keeps."""

BOUNDS = {"files": LEFT_OVER_FILES, "threads": LEFT_OVER_THREADS, "tasks": LEFT_OVER_TASKS, "rss_kib": GROWN_KIB}
"""By what a sample has; only name servers tell of their tasks."""


def check_agreement(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """The name servers agreed within the bound, on what is really there."""
    del timeline
    waits = list(of_kind(records, "agreed"))
    if not waits:
        yield "agreement: it was never looked at"
    for wait in waits:
        if wait["difference"]:
            yield f"agreement: not within {wait['seconds']:.1f} s at {wait['at']:.3f} s: {wait['difference']}"


def check_left_overs(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Processes that lived all the time have the descriptors, threads, tasks and memory again that they had before."""
    del timeline
    before = {(s["name"], s["pid"]): s for s in of_kind(records, "sample") if s["phase"] == "before"}
    for sample in of_kind(records, "sample"):
        earlier = before.get((sample["name"], sample["pid"]))
        if sample["phase"] != "after" or earlier is None:
            continue
        for what in (what for what in BOUNDS if what in earlier):
            if sample[what] > earlier[what] + BOUNDS[what]:
                yield f"left over: {what} of {sample['name']} went from {earlier[what]} to {sample[what]}"
    for count in of_kind(records, "watches"):
        if count["open"] != count["expected"]:
            yield f"left over: {count['open']} watches are open, not {count['expected']}"
