"""The one queue through which every change of the tables goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from namesrv.config.limits import MAX_WAITING_WRITERS
from namesrv.core.errors import Overloaded
from namesrv.core.slices import ResultT, Sliced
from namesrv.garbage_collection import collecting
from namesrv.server.background.turns import Turns

MOST_TURNS = 25
"""Turns of the event loop that are given away after a slice if no other work needs them: a tenth of a millisecond."""


class TableWriter:
    """Runs one change at a time, in the order they came, and gives the event loop back between their slices.

    So a lookup never waits for more than a slice, and nothing moves under a change while it is being prepared.
    """

    def __init__(self, max_waiting: int = MAX_WAITING_WRITERS) -> None:
        self._turn = asyncio.Lock()
        self._slice_turn = asyncio.Lock()
        self._turns = Turns()
        self._waiting = 0
        self._max_waiting = max_waiting

    async def apply(self, change: Sliced[ResultT]) -> ResultT:
        """Applies a change and returns its result. If the caller goes away before the end, nothing has changed.

        Raises:
            Overloaded: Too many changes wait already.
            CallRefused: What the change raises.
        """
        if self._waiting >= self._max_waiting:
            raise Overloaded(f"{self._waiting} changes wait for their turn already")
        return await self._in_turn(change)

    async def apply_unbounded(self, change: Sliced[ResultT]) -> ResultT:
        """Applies a change that must not be refused, because it is on disk already or the server's own.

        The caller bounds how many wait.

        Raises:
            CallRefused: What the change raises.
        """
        return await self._in_turn(change)

    async def beside_changes(self, steps: Sliced[ResultT]) -> ResultT:
        """Drives steps that change nothing, such as reading what is to be changed, while changes are made.

        A slice of a change and one of these take turns. So both together hold up lookups no more than a change alone.
        """
        return await run_cooperatively(collecting(steps), slice_turn=self._slice_turn)

    async def _in_turn(self, change: Sliced[ResultT]) -> ResultT:
        self._waiting += 1
        try:
            if not self._turns.begin():
                await self._turns.wait()
            async with self._turn:
                return await run_cooperatively(collecting(change), slice_turn=self._slice_turn)
        finally:
            self._waiting -= 1
            change.close()


async def run_cooperatively(
    steps: Sliced[ResultT], clock: Callable[[], float] = time.perf_counter, slice_turn: asyncio.Lock | None = None
) -> ResultT:
    """Drives steps to their end, and after each gives the event loop back for as long as the step took.

    One turn is not enough: a call needs several until it is answered, and would wait for a slice before each of them.

    Args:
        steps: The work.
        clock: Seconds.
        slice_turn: Shared by work of which one slice at a time may run; None: this work's slices wait for no others.
    """
    while True:
        async with slice_turn or contextlib.nullcontext():
            began = clock()
            try:
                next(steps)
            except StopIteration as end:
                result: ResultT = end.value
                return result
            ended = clock()
            for _ in range(MOST_TURNS):
                _offer_the_core()
                await asyncio.sleep(0)
                if clock() - ended >= ended - began:
                    break
            _offer_the_core()  # else what was answered at once in the last turn would be written after the next slice


def _offer_the_core() -> None:
    """Lets other threads run that are ready to.

    On one core the engine's threads, which read calls and write answers, wait for this thread, and Linux lets it run on
    for milliseconds. Beside a large change, lookups waited mostly for that.
    """
    os.sched_yield()
