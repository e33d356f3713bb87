"""Yield points of a long computation: there its thread may give the processor and the interpreter away.

A loop has a yield point after every few items. There a thread for computations sleeps 50 µs, if it has worked for half
a millisecond since it last did. So loops need not know what their items cost, and their callers stay plain.

The interpreter alone changes hands often enough (``sys.setswitchinterval``). But where the engine's thread and this
one share a core, Linux lets a busy thread run on for milliseconds. ``sched_yield`` is no remedy: it releases the
interpreter before the interval of the thread that waits has ended, and that interval begins anew. So on two cores the
event loop loses the race again and again. With more work between two yields lookups wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
