"""Work that can be interrupted between slices, so that other work waits for one slice at most."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from namesrv.core.pace import yield_point

ResultT = TypeVar("ResultT")
Sliced = Generator[None, None, ResultT]
"""Work that yields between slices. Its driver decides what runs in between."""


def run_steps(steps: Sliced[ResultT]) -> ResultT:
    """Drives steps to their end, with a yield point between them where this is a thread for computations."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        yield_point()


ItemT = TypeVar("ItemT")

SLICE = 1_000
"""Items between two yields. An item costs up to 1 µs."""


class Slice:
    """Counts the items of a generator, which yields whenever ``is_over``."""

    def __init__(self) -> None:
        self._items = 0

    def is_over(self, items: int = 1) -> bool:
        """Counts further items; reports whether it is time to yield."""
        self._items += items
        if self._items < SLICE:
            return False
        self._items = 0
        return True


def each_in_slices(items: Iterable[ItemT], action: Callable[[ItemT], object]) -> Sliced[None]:
    """Does the same with each item, and yields after each slice."""
    work = Slice()
    for item in items:
        action(item)
        if work.is_over():
            yield


SortedT = TypeVar("SortedT", str, int)

SORT_SLICE = 2_000
"""Names that are sorted into buckets, or in them, before yielding: one to three milliseconds. A million names,
scattered in memory, take the longest."""

SORT_SAMPLES, SAMPLES_OF_A_BUCKET = 4_096, 4
"""Names that are looked at for pivots, and each how many of them is one. If each were, the largest bucket would have
seven times as many names as the mean of all; so it has about three times as many."""


def sorted_in_slices(names: Iterable[SortedT]) -> Sliced[list[SortedT]]:
    """Sorts names or numbers in steps: into buckets between pivots first, then each bucket.

    Sorting 100,000 names in one call takes 30 ms and more, and blocks all other work. A list is emptied on the way:
    copying or freeing one of a million names takes ten milliseconds each.
    """
    unsorted = names if isinstance(names, list) else list(names)
    pivots = sorted(unsorted[:: len(unsorted) // SORT_SAMPLES + 1])[::SAMPLES_OF_A_BUCKET]
    buckets: list[list[SortedT]] = [[] for _ in range(len(pivots) + 1)]
    if len(unsorted) > SORT_SLICE:
        yield
    while unsorted:
        for name in unsorted[-SORT_SLICE:]:
            buckets[bisect_right(pivots, name)].append(name)
        del unsorted[-SORT_SLICE:]
        if unsorted:
            yield
    buckets.reverse()
    result: list[SortedT] = []
    given_way_at = 0
    while buckets:
        bucket = buckets.pop()
        if len(result) + len(bucket) - given_way_at > SORT_SLICE:
            given_way_at = len(result)
            yield
        bucket.sort()
        result += bucket
    return result
