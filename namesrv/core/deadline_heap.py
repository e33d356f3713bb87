"""A heap of deadlines that renewals do not touch."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

from namesrv.core.slices import Sliced

KeyT = TypeVar("KeyT", bound=tuple[Any, ...] | str)

SLICE = 1_000
"""Heap entries that are looked at before giving way: about a millisecond."""

_REBUILD_SLACK = 64
"""Stale heap entries, beyond one for each key, that are tolerated before the heap is made anew."""


class DeadlineHeap(Generic[KeyT]):
    """Deadlines of many keys, with cheap renewal. All times are seconds of one monotonic clock.

    A renewal changes only the true deadline in a dictionary. The heap holds an entry for each key with a time that may
    be too early, never too late. An entry that comes up too early goes back with the true time, as in python-zeroconf's
    cache. So the heap does not grow with the rate of renewals.
    """

    def __init__(self) -> None:
        self._deadlines: dict[KeyT, float] = {}
        self._heap: list[tuple[float, KeyT]] = []
        self._scheduled: dict[KeyT, float] = {}
        """The time of each key's entry in the heap; an entry with another time is stale."""
        self.longest_overdue = 0.0
        """By how much the most overdue key was overdue when ``overdue`` was asked last; 0 if none was."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def heard(self, key: KeyT, now: float, timeout: float) -> None:
        """The key was heard of now, and may be silent for the timeout."""
        due = self._deadlines[key] = now + timeout
        if due < self._scheduled.get(key, float("inf")):
            self._schedule(key, due)

    def heard_meanwhile(self, key: KeyT, now: float, timeout: float) -> None:
        """The key was heard of now, which gives it the timeout, or leaves it the time that it has if that is longer."""
        if self._deadlines.get(key, now) < now + timeout:
            self.heard(key, now, timeout)

    def forget(self, key: KeyT) -> None:
        """The key is gone. Its heap entry is dropped when it comes up."""
        self._deadlines.pop(key, None)

    def due(self, key: KeyT) -> float | None:
        """Until when the key may be silent; None if it is not known."""
        return self._deadlines.get(key)

    def is_overdue(self, key: KeyT, now: float) -> bool:
        """Whether the key has been silent for longer than its timeout; exactly as long is not overdue."""
        return self._deadlines.get(key, now) < now

    def overdue(self, now: float) -> Sliced[list[KeyT]]:
        """Finds the keys that are overdue. They come up again each time until they are forgotten or heard of.

        Keys that are heard of while this gives way may be among them: ask ``is_overdue`` before acting on one.
        """
        found: dict[KeyT, float] = {}
        try:
            while self._take_slice(now, found):
                yield
            self.longest_overdue = now - min(found.values(), default=now)
        finally:  # also if nobody drives this to its end: the keys that were found must come up again
            for key in found:
                if key in self._deadlines and key not in self._scheduled:
                    self._schedule(key, self._deadlines[key])
        return list(found)

    def _take_slice(self, now: float, found: dict[KeyT, float]) -> bool:
        """Looks at some entries that have come up. Returns whether there are more."""
        heap, scheduled, deadlines = self._heap, self._scheduled, self._deadlines
        for _ in range(SLICE):
            if not heap or heap[0][0] >= now:
                return False
            time, key = heap[0]
            is_stale, due = scheduled.get(key) != time, deadlines.get(key)
            if not is_stale and due is not None and due >= now:
                heapq.heapreplace(heap, (due, key))
                scheduled[key] = due
                continue
            heapq.heappop(heap)
            if not is_stale:
                del scheduled[key]
                if due is not None:
                    found[key] = due
        return True

    def postpone(self, seconds: float) -> None:
        """Gives every key that much more time."""
        self._deadlines = {key: due + seconds for key, due in self._deadlines.items()}

    def _schedule(self, key: KeyT, time: float) -> None:
        self._scheduled[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._deadlines) + _REBUILD_SLACK:
            self._scheduled = dict(self._deadlines)
            self._heap = [(due, key) for key, due in self._scheduled.items()]
            heapq.heapify(self._heap)
