"""The event loop's time for requests of this protocol, round robin by address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from namesrv.app.fair_queue import FairQueue

SLICE_NANOS = 4_000_000
"""Time for requests of this protocol in one iteration of the event loop, of all peers together."""

STEP_NANOS = 1_000_000
"""Time that a call or a handshake counts for when it begins. Four registrations of few topics take as long."""


class LoopTime:
    """Shares out the time of the event loop. Work beyond the slice of an iteration waits for the next one."""

    def __init__(self, nanos: Callable[[], int] = time.perf_counter_ns) -> None:
        self._nanos = nanos
        self._until = 0
        self._is_begun = False
        """Whether the slice of this iteration was begun."""
        self._waiting: FairQueue[Callable[[], None]] = FairQueue()

    def may_begin(self) -> bool:
        """Whether there is time, and no earlier work waits for it."""
        return not self._waiting and self.is_left()

    def is_left(self) -> bool:
        """Whether there is time in this iteration."""
        if not self._is_begun:
            self._begin()
        return self._nanos() < self._until

    def call_later(self, owner: str, call: Callable[[], None]) -> None:
        """Makes a call once it is next, and there is time."""
        self._waiting.put(owner, call)
        if not self._is_begun:
            self._begin()

    async def begin(self, owner: str) -> None:
        """Returns once a step of unknown length may begin."""
        if self.may_begin():
            self._until -= STEP_NANOS
            return
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(owner, partial(self._let_begin, begun))
        await begun

    def _let_begin(self, begun: asyncio.Future[None]) -> None:
        if not begun.done():
            self._until -= STEP_NANOS
            begun.set_result(None)

    def _begin(self) -> None:
        self._is_begun = True
        self._until = self._nanos() + SLICE_NANOS
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._is_begun = False
        while self._waiting and self.is_left():
            self._waiting.get()()
