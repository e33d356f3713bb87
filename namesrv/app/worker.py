"""A thread for long computations, a queue that is fair to its callers, and the way of the event loop to wait for both.

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
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from functools import partial
from typing import Any, Generic, TypeVar

from namesrv.core.pace import YIELD_POINT, ResultT

# A queue and a lock that serve owners round robin, and each owner's items in the order they arrive.
#
# A caller therefore waits for one item of each other owner, however many these have queued. An owner is a principal by
# name or, without permits, an address; the server itself is one, too.

OWN = ""
"""The owner of the server's own work. No caller has an empty name."""

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """A queue that serves its owners round robin. Not thread-safe."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[deque[ItemT], deque[ItemT]]] = OrderedDict()
        """Owners with items: those that are next, and the others. The first owner is served next."""
        self.last_owner = OWN
        """The owner that was served last. Owners that arrive later are served before it."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, owner: str, item: ItemT, *, is_next: bool = False) -> None:
        """Adds an item after those of its owner; with ``is_next``, only after those that are next, too."""
        first, others = self._items.setdefault(owner, (deque(), deque()))
        (first if is_next else others).append(item)

    def get(self) -> ItemT:
        """Removes and returns the next owner's first item."""
        if self.last_owner in self._items:
            self._items.move_to_end(self.last_owner)
        self.last_owner, (first, others) = self._items.popitem(last=False)
        item = (first or others).popleft()
        if first or others:
            self._items[self.last_owner] = first, others
        return item


class FairLock:
    """A lock whose waiters are a ``FairQueue``, and which a bounded number may hold in one iteration of the event loop.

    A thousand short holders one after the other would otherwise block everything else on the event loop.
    """

    def __init__(self, at_once: int = 1) -> None:
        """Takes how many holders it may have in one iteration, one after the other."""
        self._waiters: FairQueue[asyncio.Future[None]] = FairQueue()
        self._called: deque[asyncio.Future[None]] = deque()
        """Waiters that were called and found the lock held: fewer than are called at once, and called again first."""
        self._is_held = False
        self._at_once = self._left = at_once
        """How many it may have in an iteration, and how many of them it has not called yet."""
        self._is_due = False
        """Whether the next iteration calls waiters."""
        self.waiting = 0
        """Number of callers that wait for it or hold it."""

    async def acquire(self, owner: str) -> None:
        """Waits for the lock; ``release`` must follow."""
        self.waiting += 1
        is_called = False
        while self._is_held or (not is_called and (self._called or self._waiters or not self._left)):
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if is_called:
                self._called.append(called)
            else:
                self._waiters.put(owner, called)
            try:
                await called
            except asyncio.CancelledError:
                self.waiting -= 1
                self._call_soon()
                raise
            is_called = True
        self._left -= not is_called
        self._is_held, self._waiters.last_owner = True, owner

    def release(self) -> None:
        self.waiting -= 1
        self._is_held = False
        self._call_soon()

    @asynccontextmanager
    async def held_for(self, owner: str) -> AsyncIterator[None]:
        """Holds the lock for as long as the context lasts."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release()

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        """Calls the next waiters that were not cancelled. A waiter that finds the lock held waits again."""
        self._is_due = False
        if self._is_held:
            return
        self._left = self._at_once
        while (self._called or self._waiters) and self._left:
            called = self._called.popleft() if self._called else self._waiters.get()
            if not called.done():
                called.set_result(None)
                self._left -= 1


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
