"""The table writer: applies one change at a time and yields to the event loop between slices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections import deque
from collections.abc import Callable

from namesrv.core.errors import Overloaded
from namesrv.core.slices import ResultT, Sliced
from namesrv.limits import MAX_WAITING_WRITERS

# Turns of small work: a few pieces begin in one turn of the event loop, others in the next ones in their order.

BEGUN_IN_A_TURN = 4
"""Pieces of work that begin before others have their turn: four registrations of few topics take a millisecond."""


class Turns:
    """Spreads pieces of work that do not give way by themselves over turns of the event loop.

    A registration of few topics is one step. When a thousand brokers register at once, a thousand of these are ready in
    one turn, and a lookup would wait for all of them: a third of a second. So each turn begins a few, and no fewer
    while any wait, as each turn costs something itself. Where new pieces come just as the last of those that waited
    begin, one turn can have twice as many.
    """

    def __init__(self) -> None:
        self._begun = 0
        """Pieces that have begun since the count was set back. Those of earlier turns may be among them."""
        self._line: deque[asyncio.Future[None]] = deque()
        """Whoever waits. The next turn is planned as long as anybody does."""

    def begin(self) -> bool:
        """Whether a piece may begin now; otherwise it has to ``wait``."""
        if self._line or self._begun >= BEGUN_IN_A_TURN:
            return False
        self._begun += 1
        if self._begun == BEGUN_IN_A_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
        return True

    async def wait(self) -> None:
        """Waits for the pieces that came before, and until others have had their turn. Then the piece begins."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._line and self._begun < BEGUN_IN_A_TURN:
            turn = self._line.popleft()
            if not turn.done():  # else its caller has gone
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            # Those that were woken run before this is called again. Until then nobody may overtake them.
            self._begun = BEGUN_IN_A_TURN
            asyncio.get_running_loop().call_soon(self._next_turn)


# Tuning of the garbage collector, which holds up everything else while it runs.

YOUNG, MIDDLE, FULL = 5_000, 10, 1_000
"""Net new objects before a run over the youngest, such runs before one over the middle generation, and those before a
full one. With Python's own numbers (700, 10, 10) filling the tables causes full runs, of some 10 ms at 400,000 rows.
They find nothing: rows hold no cycles."""

_YOUNG_GENERATION, _MIDDLE_GENERATION = 0, 1


def tune_garbage_collection() -> None:
    """Makes full runs rare, and exempts objects that exist already. Call it once, after importing everything."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, FULL)


def collecting(steps: Sliced[ResultT]) -> Sliced[ResultT]:
    """The same steps, with a run over the new objects after each: some 20 µs if a step is a slice of a change.

    Rows that replace others are no net growth, so without this they would pile up before a run of 10 ms and more. When
    the collector sees tuples of bytes soon, they are exempt for good. A growing table gets into the oldest generation
    while it is small.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        finally:
            gc.collect(_MIDDLE_GENERATION if gc.get_count()[_MIDDLE_GENERATION] >= MIDDLE else _YOUNG_GENERATION)
        yield


# The one queue through which every change of the tables goes.

MAX_YIELDS = 25
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

    async def interleave(self, steps: Sliced[ResultT]) -> ResultT:
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
            for _ in range(MAX_YIELDS):
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
