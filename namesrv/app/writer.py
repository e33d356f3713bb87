"""The table writer makes one change at a time: a thread prepares it, the event loop commits it.

The event loop owns all that callers see: the rows of the tables, channels, liveness, intents, the change log and the
engine's cached answers. Only a commit changes what the tables say, in one step of the event loop. A sparse table
is replaced by an equal, compact one later.

The writer's thread prepares a change. It reads tables, which stand still: one change at a time is under way. It owns
the transaction that it prepares, which no other code sees. It may read channels and liveness, and must change neither
these nor quotas and streams. A debug assertion, ``pace.belongs_to_loop``, fails where it does.

How a result is published:

- A change: its commit replaces the tables, which never change, by one assignment, and updates their index. The
  listeners of the change log run in the same step, so cached answers go stale before a caller can ask again.
- Interned QueueDatas, and names in the index of a table: one dictionary entry each, before a row refers to it.
- A parsed request: the result of a job.

Code on the event loop may look up rows at any time. A reader that needs all rows of one moment takes a reference to
the tables. The event loop waits for the thread only by awaiting. A caller that is cancelled takes its job along: the
thread notices at its next yield point, and nothing of the change is committed.

Changes of up to 100 topics are prepared on the event loop, at most four in an iteration.

The writer's thread also reads requests, although reading needs no table: a second thread would share the interpreter
with the change that all others wait for. Changes and small requests interrupt the reading of a large request.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import structlog

from namesrv.app.worker import OWN, FairLock, Urgency, Worker
from namesrv.core.changes import ListenerFailed
from namesrv.core.errors import Refused, overloaded, shutting_down
from namesrv.core.model import RegisterBrokerResult
from namesrv.core.pace import ResultT, Sliced
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.state import RouteState, StateChange
from namesrv.limits import MAX_WAITING_WRITERS

_log = structlog.get_logger(__name__)

# Tuning of the garbage collector, which blocks everything else while it runs.

YOUNG, MIDDLE, FULL = 5_000, 10, 1_000
"""Net new objects before a run over the youngest, such runs before one over the middle generation, and those before a
full one. With Python's own numbers (700, 10, 10) filling the tables causes full runs, of some 10 ms at 400,000 rows.
They find nothing: rows hold no cycles."""


def tune_garbage_collection() -> None:
    """Makes full runs rare, and exempts objects that exist already. Call it once, after importing everything."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, FULL)


# The one line through which every change of the tables goes.

INLINE_TOPICS = 100
"""A change of up to so many topics is made on the event loop: a fifth of a millisecond. A hop to the thread and back
takes 60 µs, and three milliseconds at the worst."""

CHANGES_AT_ONCE = 4
"""Changes that are made in one iteration of the event loop: a millisecond of small ones. Their answers leave together,
which spares a third of the cost of each."""

LARGE_TOPICS = 10_000
"""Topics from which on other work interrupts the reading of a registration: reading so many takes some 20 ms."""

LARGE_BYTES = 256 * 1024
"""The same in bytes of a request."""


class CommitFailed(Exception):
    """A commit has failed half-way, and the tables may be half changed."""


class TableWriter:
    """Makes one change at a time, round robin by owner, prepared on a thread and committed on the event loop.

    A lookup never waits for more than a commit and a switch of threads, and nothing moves under a change while it is
    being prepared. A change waits for the one under way, and for one of each other owner.
    """

    def __init__(self, max_waiting: int = MAX_WAITING_WRITERS) -> None:
        self._lock = FairLock(CHANGES_AT_ONCE)
        self._max_waiting = max_waiting
        self._worker = Worker("table-writer")
        self._has_failed = asyncio.Event()
        self._failure: CommitFailed

    @property
    def waiting(self) -> int:
        """Number of changes that wait, and the one that is being made."""
        return self._lock.waiting

    async def apply(self, change: StateChange[ResultT], owner: str = OWN) -> ResultT:
        """Makes a change and returns its result. If the caller goes away before the commit, nothing has changed.

        The server's own changes, and those that are on disk already, are never refused: their callers bound them.

        Raises:
            OVERLOADED: Too many changes wait already.
            Refused: What the change raises.
        """
        if owner != OWN and self.waiting >= self._max_waiting:
            raise overloaded(f"{self.waiting} changes wait for their turn already")
        async with self._lock.held_for(owner):
            return await self._make(change)

    async def read_and_apply(self, change: BrokerRegistration, owner: str) -> RegisterBrokerResult:
        """The same for a registration, which reads its topics first. Other changes are made while it does."""
        if (topics := change.topics_to_read) > INLINE_TOPICS:
            await self.read(change.read, owner, is_large=topics > LARGE_TOPICS)
        elif topics:
            change.read()
        return await self.apply(change, owner)

    async def apply_each(self, changes: Iterator[StateChange[list[ResultT]]]) -> list[ResultT]:
        """Makes changes that follow from each other, with no other one between them, and returns all their results.

        They are the server's own, or stand for one call, so they are never refused. Raises Refused, as they do.
        """
        results: list[ResultT] = []
        async with self._lock.held_for(OWN):
            while (change := await self._worker.run(partial(next, changes, None), urgency=Urgency.FIRST)) is not None:
                results += await self._make(change)
        return results

    async def read(
        self, work: Callable[[], ResultT], owner: str, *, is_large: bool = False, is_next: bool = True
    ) -> ResultT:
        """Has the thread do work that changes nothing, such as reading what is to be changed. Raises what it raises.

        Args:
            is_large: Whether other work interrupts it.
            is_next: Whether it goes before the owner's other work, so that few parsed requests are in memory.
        """
        return await self._worker.run(work, owner, Urgency.LARGE if is_large else Urgency.USUAL, is_next=is_next)

    async def until_failed(self) -> NoReturn:
        """Waits for a commit to fail. Raises CommitFailed."""
        await self._has_failed.wait()
        raise self._failure

    async def _make(self, change: StateChange[ResultT]) -> ResultT:
        state = change.state
        if change.topics <= INLINE_TOPICS:
            change.prepare()
        else:
            await self._worker.run(change.prepare, urgency=Urgency.FIRST)
        result = self.commit_now(state, type(change).__name__, change.commit)
        if state.tables.topic_queue_table.is_sparse:
            topics = await self._worker.run(state.tables.topic_queue_table.compacted, urgency=Urgency.FIRST)
            state.tables = state.tables._replace(topic_queue_table=topics)
        return result

    def commit_now(self, state: RouteState, change: str, commit: Callable[[], ResultT]) -> ResultT:
        """Makes a change that is prepared, or needs no preparation, and returns its result.

        If the commit fails half-way, the name server ends.

        Args:
            change: Its name in the log.

        Raises:
            SHUTTING_DOWN: This commit, or one before it, has failed.
            Refused: What the commit raises.
        """
        if state.is_half_made:
            raise shutting_down()
        try:
            return commit()
        except Refused:
            raise
        except Exception as error:
            # A supervisor starts the name server again from the last snapshot, which is whole.
            state.frozen = state.is_half_made = True
            listener = error.listener if isinstance(error, ListenerFailed) else None
            _log.error("commit_failed", change=change, listener=listener, exc_info=error)
            self._failure = CommitFailed(f"{change}: {error!r}")
            self._has_failed.set()
            raise shutting_down() from error


# Steps of work that stays on the event loop: watches, and reading tables that others change between the steps.

MAX_YIELDS = 25
"""Iterations of the event loop that are yielded after a slice if no other work needs them: a tenth of a millisecond."""


async def run_cooperatively(steps: Sliced[ResultT], clock: Callable[[], float] = time.perf_counter) -> ResultT:
    """Drives steps to their end, and after each gives the event loop back for as long as the step took.

    One iteration is not enough: a call needs several until it is answered, and would wait for a slice before each. On
    one core the engine's threads, which read calls and write answers, wait for this thread, and Linux lets it run on
    for milliseconds unless it yields.
    """
    while True:
        began = clock()
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        ended = clock()
        for _ in range(MAX_YIELDS):
            os.sched_yield()
            await asyncio.sleep(0)
            if clock() - ended >= ended - began:
                break
        os.sched_yield()  # else the last iteration's answers would be written after the next slice
