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
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from namesrv.app.fair_queue import OWN, FairQueue
from namesrv.core.pace import YIELD_POINT

ResultT = TypeVar("ResultT")

WORK_SECONDS = 0.0005
"""Work between two yields."""

YIELD_SECONDS = 0.00005
"""Sleep of a yield: long enough for other threads to take the processor and the interpreter."""

YOUNG, MIDDLE = 0, 1
"""Generations of the garbage collector."""

LINGER_SECONDS = 5.0
"""Time for which an idle thread waits for another job before it ends. To start one holds the event loop up for a tenth
of a millisecond."""

OWN_SECONDS = 0.02
"""Longest time between two interruptions of a large job. It bounds the wait of the next job."""


class Urgency(IntEnum):
    """The urgency of a job. Jobs of equal urgency are served round robin by owner."""

    LARGE = 0
    """All others go first, also once it has begun: they interrupt it at its yield points."""
    USUAL = 1
    FIRST = 2
    """A change that is being made: all other changes wait for it."""


class GivenUp(BaseException):
    """The caller has left. Not an Exception, so that no handler in a computation takes it for an error."""


class TimedYields:
    """Yields at a yield point if the thread has worked for ``WORK_SECONDS`` since it last did."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> bool:
        """Whether it yielded."""
        is_due = time.perf_counter() - self._since >= WORK_SECONDS
        if is_due:
            time.sleep(YIELD_SECONDS)
            self._since = time.perf_counter()
        return is_due


class _Job:
    def __init__(
        self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, interrupt: Callable[[], bool] | None
    ) -> None:
        self._work = work
        self.loop = loop
        self._interrupt = interrupt
        """Does another job if one waits; None if others wait for this one."""
        self._own_until = 0.0
        """Until when it is not interrupted."""
        self._context = contextvars.copy_context()
        self.ended: asyncio.Future[Any] = loop.create_future()
        self.given_up = False

    def run(self) -> None:
        """Does the work. Called once, on the thread."""
        context, work, loop, ended = self._context, self._work, self.loop, self.ended
        del self._context, self._work, self.ended
        self._yield = TimedYields()
        result, error = None, None
        try:
            try:
                context.run(YIELD_POINT.set, self._at_yield_point)
                result = None if self.given_up else context.run(work)
            finally:
                del context, work  # the context refers to this job
                # Rows that replace others are no net growth: without this they would pile up before a run of 10 ms.
                gc.collect(MIDDLE if gc.get_count()[MIDDLE] >= gc.get_threshold()[MIDDLE] else YOUNG)
        except BaseException as raised:  # noqa: BLE001 - the caller gets it, and the thread goes on
            error = raised
        try:
            loop.call_soon_threadsafe(_end, ended, result, error)
        except RuntimeError:
            pass  # the loop is closed
        finally:
            del result, error, ended  # the error refers to this frame

    def _at_yield_point(self) -> None:
        if self.given_up:
            raise GivenUp
        if not self._yield() or self._interrupt is None:
            return
        began = time.perf_counter()
        if began >= self._own_until and self._interrupt():
            ended = time.perf_counter()
            self._own_until = ended + min(ended - began, OWN_SECONDS)


def _end(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.done():
        return
    if error is not None:
        ended.set_exception(error)
    else:
        ended.set_result(result)


def with_pauses(work: Callable[[], ResultT]) -> ResultT:
    """Does work with yield points, on a thread that may be left behind, such as one that waits for a disk."""
    context = contextvars.copy_context()
    context.run(YIELD_POINT.set, TimedYields())
    return context.run(work)


INTERRUPTING = Urgency.FIRST, Urgency.USUAL
ORDER = Urgency.FIRST, Urgency.LARGE, Urgency.USUAL
"""A large job begins before usual ones, which interrupt it at once: so neither keeps the other from being done."""


class Worker:
    """Runs jobs one after the other, by urgency and then round robin by owner. The thread lives while there are jobs.

    A large job is interrupted by others, which run on the same thread: two threads would share the interpreter.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: dict[Urgency, FairQueue[_Job]] = {urgency: FairQueue() for urgency in Urgency}
        self._more = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    async def run(
        self, work: Callable[[], ResultT], owner: str = OWN, urgency: Urgency = Urgency.USUAL, *, is_next: bool = False
    ) -> ResultT:
        """Does work on the thread. If the caller is cancelled, the work ends at its next yield point, and this then.

        Args:
            owner: Whose work it is.
            is_next: Whether it goes before the owner's other work, which it is the end of some of.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop, partial(self._do_one_of, INTERRUPTING) if urgency is Urgency.LARGE else None)
        del work
        ended = job.ended
        self._submit(job, owner, urgency, is_next=is_next)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not ended.done():
                try:
                    await asyncio.wait([ended])
                except asyncio.CancelledError as error:
                    job.given_up, cancelled = True, error
            if cancelled is not None:
                ended.exception()  # whatever it is, nobody waits for it
                raise cancelled
            return ended.result()  # type: ignore[no-any-return]
        finally:
            del ended, cancelled, job  # both errors refer to this frame

    def _submit(self, job: _Job, owner: str, urgency: Urgency, *, is_next: bool) -> None:
        with self._more:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()  # before the job is queued: this may fail for want of memory
                self._thread = thread
            self._jobs[urgency].put(owner, job, is_next=is_next)
            self._more.notify()

    def _work(self) -> None:
        while self._has_more():
            self._do_one_of(ORDER)

    def _has_more(self) -> bool:
        """Waits for a job; false if the thread is to end because there was none for long."""
        with self._more:
            has_more = self._more.wait_for(lambda: any(self._jobs.values()), LINGER_SECONDS)
            if not has_more:
                self._thread = None
            return has_more

    def _do_one_of(self, urgencies: Sequence[Urgency]) -> bool:
        """Does a job of the first of these urgencies that has one, on the thread. Whether there was one."""
        with self._more:
            job = next((jobs.get() for urgency in urgencies if (jobs := self._jobs[urgency])), None)
        if job is not None:
            job.run()
        return job is not None
