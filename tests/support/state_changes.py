"""Changes made at once, changes of nothing, and work that a test blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TypeVar

from namesrv.core.pace import yield_point
from namesrv.core.state import ANY_NUMBER, RouteState, StateChange
from tests.support.patience import TIMEOUT

ResultT = TypeVar("ResultT")

LOOK_SECONDS = 0.001
"""Time between two yield points of work that is held."""


def apply_now(change: StateChange[ResultT]) -> ResultT:
    """Makes a change where nobody else runs."""
    change.prepare()
    return change.commit()


def apply_all_now(changes: Iterator[StateChange[list[ResultT]]]) -> list[ResultT]:
    """The same with changes that follow from each other. Returns all their results."""
    return [result for change in changes for result in apply_now(change)]


class Nothing:
    """A small change, made after all that stand before it."""

    topics = 0

    def __init__(self, state: RouteState) -> None:
        self.state = state

    def prepare(self) -> None:
        pass

    def commit(self) -> None:
        pass


class HeldWork:
    """Work of a thread that has yield points until the test lets it go, or until nobody waits for it."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._let_go = threading.Event()

    async def begun(self) -> None:
        """Waits until the thread does it."""
        assert await asyncio.to_thread(self._begun.wait, TIMEOUT), "it never had its turn"

    def let_go(self) -> None:
        self._let_go.set()

    def __call__(self) -> None:
        self._begun.set()
        while not self._let_go.wait(LOOK_SECONDS):
            yield_point()


class Held(HeldWork):
    """A large change whose preparation is such work."""

    topics = ANY_NUMBER

    def __init__(self, state: RouteState) -> None:
        super().__init__()
        self.state = state

    def prepare(self) -> None:
        self()

    def commit(self) -> None:
        pass
