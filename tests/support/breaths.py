"""Moments at which another thread may run: the breaths of a change that is prepared on a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context

import pytest

from namesrv.app.worker import GivenUp
from namesrv.core import pace
from namesrv.core.pace import BREATH


@contextmanager
def breathing(breath: Callable[[], None]) -> Iterator[None]:
    """Has every breath be a moment of the event loop, and all else run as on a thread for computations.

    What the breath raises ends the work.
    """
    token = BREATH.set(lambda: Context().run(breath))
    try:
        yield
    finally:
        BREATH.reset(token)


def breaths_of(work: Callable[[], object]) -> int:
    """Does work, and returns how many breaths it took."""
    taken: list[None] = []
    with breathing(lambda: taken.append(None)):
        work()
    return len(taken)


class AtBreath:
    """A breath that does something when it is the one of a number, counted from 0."""

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


def give_up() -> None:
    """Ends the work, as after its caller has left."""
    raise GivenUp


@contextmanager
def short_breaths() -> Iterator[None]:
    """Changes take a breath after every topic, group and broker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace.paced, "__defaults__", (1,))
        yield
