"""Work that can be interrupted between slices, so that other work never waits for all of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable
from typing import TypeVar

ResultT = TypeVar("ResultT")
Sliced = Generator[None, None, ResultT]
"""Work that gives way between slices. Its driver decides what happens in between."""


def run_sync(steps: Sliced[ResultT]) -> ResultT:
    """Drives steps to their end without giving way."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


SORT_SLICE = 5_000
"""Names that are sorted into buckets before giving way: about two milliseconds."""

SORT_BUCKETS = 256


def sorted_in_slices(names: Iterable[str]) -> Sliced[list[str]]:
    """Sorts names in steps: into buckets between pivots first, then each bucket.

    Sorting 100,000 names in one call takes 30 ms and more, and nothing else runs meanwhile.
    """
    unsorted = list(names)
    pivots = sorted(unsorted[:: len(unsorted) // SORT_BUCKETS + 1])
    buckets: list[list[str]] = [[] for _ in range(len(pivots) + 1)]
    for count, name in enumerate(unsorted, 1):
        buckets[bisect_right(pivots, name)].append(name)
        if count % SORT_SLICE == 0:
            yield
    result: list[str] = []
    given_way_at = 0
    for bucket in buckets:
        bucket.sort()
        result += bucket
        if len(result) - given_way_at >= SORT_SLICE:
            given_way_at = len(result)
            yield
    return result
