"""Moments at which another thread may run: the yield points of a change that is prepared on a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context

from namesrv.core.pace import YIELD_POINT


@contextmanager
def yielding(moment: Callable[[], None]) -> Iterator[None]:
    """Has every yield point be a moment of the event loop, and all else run as on a thread for computations.

    What ``moment`` raises ends the work.
    """
    token = YIELD_POINT.set(lambda: Context().run(moment))
    try:
        yield
    finally:
        YIELD_POINT.reset(token)


def yield_points_of(work: Callable[[], object]) -> int:
    """Does work, and returns how many yield points it had."""
    taken: list[None] = []
    with yielding(lambda: taken.append(None)):
        work()
    return len(taken)


class AtYieldPoint:
    """A yield point that does something when it is the one of a number, counted from 0."""

    def __init__(self, number: int, moment: Callable[[], object]) -> None:
        self._left = number
        self._moment = moment

    @property
    def has_come(self) -> bool:
        return self._left < 0

    def __call__(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._moment()
