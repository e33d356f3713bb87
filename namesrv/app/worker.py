"""A thread for long computations, and the way of the event loop to wait for one without ever blocking.

A job may refer to much memory: a parsed request takes up to 150 MiB, and the garbage collector sees one object of it.
So an ended job leaves nothing behind that only a collection would free: no job refers to itself, and no error to a
frame that refers to the error.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from namesrv.core.pace import BREATH

ResultT = TypeVar("ResultT")

WORK_SECONDS = 0.0005
"""Work between two breaths that are taken."""

BREATH_SECONDS = 0.00005
"""Pause of a breath: long enough for other threads to take the processor and the interpreter."""

YOUNG, MIDDLE = 0, 1
"""Generations of the garbage collector."""

LINGER_SECONDS = 5.0
"""Time for which an idle thread waits for another job before it ends. To start one holds the event loop up for a tenth
of a millisecond."""

RANKS = 3
"""Jobs of a higher rank go first: those that are further on, so that little waits half done."""


class GivenUp(BaseException):
    """The caller has left. Not an Exception, so that no handler in a computation takes it for an error."""


class WorkerDied(Exception):
    """The thread has ended by an error that is no job's, so the job will not be done. ``watch`` tells the error."""


class TimedBreaths:
    """Takes a breath that is offered if the thread has worked for ``WORK_SECONDS`` since the last one."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since >= WORK_SECONDS:
            time.sleep(BREATH_SECONDS)
            self._since = time.perf_counter()


class _Job:
    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._context = contextvars.copy_context()
        self.ended: asyncio.Future[Any] = loop.create_future()
        self.given_up = False

    def run(self) -> None:
        """Does the work. Called once, on the thread."""
        context, work, loop, ended = self._context, self._work, self._loop, self.ended
        del self._context, self._work, self.ended
        self._breath = TimedBreaths()
        context.run(BREATH.set, self._breathe)
        result, error = None, None
        try:
            result = None if self.given_up else context.run(work)
        except BaseException as raised:  # noqa: BLE001 - the caller gets it
            error = raised
        del context, work  # the context refers to this job
        # Rows that replace others are no net growth: without this they would pile up before a run of 10 ms.
        gc.collect(MIDDLE if gc.get_count()[MIDDLE] >= gc.get_threshold()[MIDDLE] else YOUNG)
        try:
            loop.call_soon_threadsafe(_end, ended, result, error)
        except RuntimeError:
            pass  # the loop is closed
        finally:
            del result, error, ended  # the error refers to this frame

    def _breathe(self) -> None:
        if self.given_up:
            raise GivenUp
        self._breath()


def _end(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.done():
        return
    if error is not None:
        ended.set_exception(error)
    else:
        ended.set_result(result)


def with_pauses(work: Callable[[], ResultT]) -> ResultT:
    """Does work with breaths, on a thread that may be left behind, such as one that waits for a disk."""
    context = contextvars.copy_context()
    context.run(BREATH.set, TimedBreaths())
    return context.run(work)


class Worker:
    """Runs jobs one after the other, by rank and then in their order. The thread lives as long as there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: tuple[deque[_Job], ...] = tuple(deque() for _ in range(RANKS))
        self._more = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._awaited: set[asyncio.Future[Any]] = set()
        """The ends of all jobs that have not ended."""
        self._death: BaseException | None = None
        self._died: asyncio.Future[None] | None = None

    async def run(self, work: Callable[[], ResultT], rank: int = 0, *, to_its_end: bool = False) -> ResultT:
        """Does work on the thread. If the caller is cancelled, the work ends at its next breath, and then this does.

        Args:
            rank: 0 to 2; more goes first.
            to_its_end: Whether the work goes on to its end also if the caller is cancelled.

        Raises:
            WorkerDied: The work was not done, or not to its end.
        """
        if self._death is not None:
            raise WorkerDied
        job = _Job(work, asyncio.get_running_loop())
        del work
        ended = job.ended
        self._submit(job, rank)
        self._awaited.add(ended)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not ended.done():
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError as error:
                    job.given_up, cancelled = not to_its_end, error
            if cancelled is not None:
                ended.exception()  # whatever it is, nobody waits for it
                raise cancelled
            return ended.result()  # type: ignore[no-any-return]
        finally:
            self._awaited.discard(ended)
            del ended, cancelled, job  # both errors refer to this frame

    async def watch(self) -> None:
        """Waits for the thread to die, which it never should, and raises what ended it. Runs until cancelled."""
        if self._death is not None:
            raise self._death
        self._died = asyncio.get_running_loop().create_future()
        await self._died

    def _submit(self, job: _Job, rank: int) -> None:
        with self._more:
            if self._thread is None:
                loop = asyncio.get_running_loop()
                thread = threading.Thread(target=self._work, args=(loop,), name=self._name, daemon=True)
                thread.start()  # before the job is queued: this may fail for want of memory
                self._thread = thread
            self._jobs[rank].append(job)
            self._more.notify()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while (job := self._next()) is not None:
                job.run()
                del job
        except BaseException as error:  # noqa: BLE001 - who watches is told
            loop.call_soon_threadsafe(self._tell_death, error)

    def _next(self) -> _Job | None:
        """Waits for a job; None if the thread is to end because there was none for long."""
        with self._more:
            if not self._more.wait_for(lambda: any(self._jobs), LINGER_SECONDS):
                self._thread = None
                return None
            return next(jobs for jobs in reversed(self._jobs) if jobs).popleft()

    def _tell_death(self, error: BaseException) -> None:
        self._death = error
        for ended in self._awaited:
            if not ended.done():
                ended.set_exception(WorkerDied())
        if self._died is not None and not self._died.done():
            self._died.set_exception(error)
