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

READ_NANOS = 10_000
"""Time that a read counts for, whatever its size."""

BYTES_IN_A_NANO = 2
"""Bytes that are read in a nanosecond, beyond that."""


class LoopTime:
    """Shares out the time of the event loop. Work beyond the slice of an iteration waits for the next one."""

    def __init__(self, nanos: Callable[[], int] = time.perf_counter_ns) -> None:
        self._nanos = nanos
        self._until = 0
        """When the slice ends."""
        self._busy_at = 0
        """From when on the next iteration begins a slice. Little work does not need one for each iteration."""
        self._ends = False
        """Whether the next iteration begins a slice."""
        self._debt = 0
        """Time that was used beyond the slice of this iteration."""
        self._waiting: FairQueue[Callable[[], None]] = FairQueue()

    def may_begin(self) -> bool:
        """Whether there is time, and no earlier work waits for it."""
        return not self._waiting and self.is_left()

    def is_left(self) -> bool:
        """Whether there is time in this iteration."""
        now = self._nanos()
        if self._ends:
            return now < self._until
        if now >= self._until:
            self._begin(now)
        elif now >= self._busy_at:
            self._end_later()
        return True

    def count_read(self, size: int) -> None:
        """Counts a read after the end of the slice, so that the next one is shorter. Nothing else limits reads."""
        self._debt += READ_NANOS + size // BYTES_IN_A_NANO

    def call_later(self, owner: str, call: Callable[[], None]) -> None:
        """Makes a call once it is next, and there is time."""
        self._waiting.put(owner, call)
        self._end_later()

    async def begin(self, owner: str) -> None:
        """Returns once a step of unknown length may begin."""
        if self.may_begin():
            self._count_step()
            return
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(owner, partial(self._let_begin, begun))
        await begun

    def _let_begin(self, begun: asyncio.Future[None]) -> None:
        if not begun.done():
            self._count_step()
            begun.set_result(None)

    def _count_step(self) -> None:
        self._until -= STEP_NANOS
        self._busy_at -= STEP_NANOS

    def _begin(self, now: int) -> None:
        self._until = now + max(SLICE_NANOS - self._debt, STEP_NANOS)
        self._busy_at = now + STEP_NANOS
        self._debt = 0

    def _end_later(self) -> None:
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._ends = False
        self._begin(self._nanos())
        while self._waiting and self.is_left():
            self._waiting.get()()
