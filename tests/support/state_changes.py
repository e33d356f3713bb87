"""Changes of the tables that change nothing, and work that a test blocks, for tests of what happens around."""

from __future__ import annotations

import asyncio
import threading

from namesrv.core.pace import yield_point
from namesrv.core.state import RouteState
from namesrv.core.state_change import ANY_NUMBER
from tests.support.patience import TIMEOUT

LOOK_SECONDS = 0.001
"""Time between two yield points of work that is held."""


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
