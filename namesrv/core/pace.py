"""Yield points of a long computation: there its thread may give the processor and the interpreter away.

A loop has a yield point after every few items. There a thread for computations sleeps 50 µs, if it has worked for half
a millisecond since it last did. So loops need not know what their items cost, and their callers stay plain.

The interpreter alone changes hands often enough (``sys.setswitchinterval``). But where the engine's thread and this
one share a core, Linux lets a busy thread run on for milliseconds. ``sched_yield`` is no remedy: it releases the
interpreter before the interval of the thread that waits has ended, and that interval begins anew. So on two cores the
event loop loses the race again and again. With more work between two yields lookups wait for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")

FEW = 16
"""Items of a loop between two yield points: an item takes some 50 µs at most, a yield point 0.2 µs."""


YIELD_POINT: ContextVar[Callable[[], object]] = ContextVar("yield_point")
"""Called at each yield point of a thread for long computations. It raises the end of the computation once its caller
has left."""

is_ownership_checked = False
"""Whether ``belongs_to_loop`` fails on another thread. Tests set it; it costs a heartbeat a tenth of its time."""


def belongs_to_loop() -> None:
    """A mark of functions that only the event loop may call."""
    if is_ownership_checked and YIELD_POINT.get(None) is not None:
        raise AssertionError("a thread for computations touches what belongs to the event loop")


def yield_point() -> None:
    """Lets a thread for computations yield."""
    if (yields := YIELD_POINT.get(None)) is not None:
        yields()


def paced(items: Iterable[ItemT], few: int = FEW) -> Iterator[ItemT]:
    """The same items, with a yield point between every few. Each is asked for when it is wanted, not before."""
    iterator = iter(items)
    yield from islice(iterator, few)
    for item in iterator:
        yield_point()
        yield item
        yield from islice(iterator, few - 1)


# Work on the event loop, interrupted between slices, so that other work waits for one slice at most.

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
"""Names that are sorted or merged before yielding: one to three milliseconds. A million names, scattered in memory,
take the longest."""


def sorted_in_slices(names: Iterable[SortedT]) -> Sliced[list[SortedT]]:
    """Sorts names or numbers in steps: slices of them first, which are then merged.

    Sorting 100,000 names in one call takes 30 ms and more, and blocks all other work.
    """
    unsorted, slices = iter(names), list[list[SortedT]]()
    while names_of_slice := sorted(islice(unsorted, SORT_SLICE)):
        slices.append(names_of_slice)
        yield
    merged, result = heapq.merge(*slices), list[SortedT]()
    while merged_names := list(islice(merged, SORT_SLICE)):
        result += merged_names
        yield
    return result
