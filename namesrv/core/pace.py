"""Breaths of a long computation: moments at which its thread may give the processor and the interpreter away.

A loop offers a breath after every few items. A thread for computations takes it, and sleeps 50 µs, if it has worked for
half a millisecond since the last one. So loops need not know what their items cost, and their callers stay plain.

The interpreter alone changes hands often enough (``sys.setswitchinterval``). But where the engine's thread and this
one share a core, Linux lets a busy thread run on for milliseconds. ``sched_yield`` is no remedy: it releases the
interpreter before the interval of the thread that waits has ended, and that interval begins anew. So on two cores the
event loop loses the race again and again. With longer pauses between breaths lookups wait for what lies between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")

FEW = 16
"""Items of a loop between two offers of a breath: an item takes some 50 µs at most, an offer takes 0.2 µs."""


def _no_breath() -> None:
    pass


BREATH: ContextVar[Callable[[], object]] = ContextVar("breath", default=_no_breath)
"""Called when a breath is offered; does nothing outside a thread for long computations. It raises the end of the
computation once its caller has left."""

is_ownership_checked = False
"""Whether ``belongs_to_loop`` fails on another thread. Tests set it; it costs a heartbeat a tenth of its time."""


def belongs_to_loop() -> None:
    """A mark of functions that only the event loop may call."""
    if is_ownership_checked and BREATH.get() is not _no_breath:
        raise AssertionError("a thread for computations touches what belongs to the event loop")


def breathe() -> None:
    """Offers a breath."""
    BREATH.get()()


def paced(items: Iterable[ItemT], few: int = FEW) -> Iterator[ItemT]:
    """The same items, with an offer of a breath between every few. Each is asked for when it is wanted, not before."""
    iterator = iter(items)
    yield from islice(iterator, few)
    for item in iterator:
        breathe()
        yield item
        yield from islice(iterator, few - 1)
