"""Who was heard of when, and whose time is up."""

from __future__ import annotations

import heapq
from typing import Any, Generic, NamedTuple, TypeVar

from namesrv.core.steps import Steps

KeyT = TypeVar("KeyT", bound=tuple[Any, ...] | str)

SLICE = 1_000
"""Heap entries that are looked at before giving way: about two milliseconds."""

_REBUILD_SLACK = 64
"""Stale heap entries that are put up with beyond as many as there are keys, before the heap is made anew."""


class _Deadline(NamedTuple):
    last_heard: float
    timeout: float

    @property
    def due(self) -> float:
        return self.last_heard + self.timeout


class DeadlineHeap(Generic[KeyT]):
    """Deadlines of many keys, with cheap renewal. All times are seconds of one monotonic clock.

    A renewal changes only the true deadline in a dictionary. The heap holds an entry for each key with a time that
    may be too early, never too late; an entry that comes up too early goes back with the true time (the way of
    python-zeroconf's cache). So the heap does not grow with the rate of renewals.
    """

    def __init__(self) -> None:
        self._deadlines: dict[KeyT, _Deadline] = {}
        self._heap: list[tuple[float, KeyT]] = []
        self._scheduled: dict[KeyT, float] = {}
        """The time of each key's entry in the heap; an entry with another time is stale."""
        self.longest_overdue = 0.0
        """By how much the most overdue key was overdue when ``overdue`` was asked last; 0 if none was."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def heard(self, key: KeyT, now: float, timeout: float) -> None:
        """The key was heard of now, and may be silent for the timeout."""
        deadline = _Deadline(now, timeout)
        self._deadlines[key] = deadline
        if deadline.due < self._scheduled.get(key, float("inf")):
            self._schedule(key, deadline.due)

    def forget(self, key: KeyT) -> None:
        """The key is gone. Its heap entry is dropped when it comes up."""
        self._deadlines.pop(key, None)

    def is_overdue(self, key: KeyT, now: float) -> bool:
        """Whether the key has been silent for longer than its timeout; exactly as long is not overdue."""
        deadline = self._deadlines.get(key)
        return deadline is not None and deadline.due < now

    def overdue(self, now: float) -> Steps[list[KeyT]]:
        """Finds the keys that are overdue. They come up again each time until they are forgotten or heard of.

        Keys that are heard of while this gives way may be among them: ask ``is_overdue`` before acting on one.
        """
        found: list[KeyT] = []
        popped, longest = 0, 0.0
        try:
            while self._heap and self._heap[0][0] < now:
                popped += 1
                if popped % SLICE == 0:
                    yield
                    continue
                time, key = heapq.heappop(self._heap)
                if self._scheduled.get(key) != time:
                    continue
                del self._scheduled[key]
                deadline = self._deadlines.get(key)
                if deadline is None:
                    continue
                if deadline.due < now:
                    found.append(key)
                    longest = max(longest, now - deadline.due)
                else:
                    self._schedule(key, deadline.due)
            self.longest_overdue = longest
        finally:  # also if nobody waits for the end: what was found must come up again
            for key in found:
                if key in self._deadlines and key not in self._scheduled:
                    self._schedule(key, self._deadlines[key].due)
        return found

    def postpone(self, seconds: float) -> None:
        """Gives every key that much more time."""
        self._deadlines = {
            key: deadline._replace(last_heard=deadline.last_heard + seconds)
            for key, deadline in self._deadlines.items()
        }

    def _schedule(self, key: KeyT, time: float) -> None:
        self._scheduled[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._deadlines) + _REBUILD_SLACK:
            self._scheduled = {key: deadline.due for key, deadline in self._deadlines.items()}
            self._heap = [(due, key) for key, due in self._scheduled.items()]
            heapq.heapify(self._heap)
