"""The fan-out of a call to all name servers: a thread pool, a latch that joins it, and copy-on-write results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import structlog

from broker_agent.name_server import NamesrvTarget

T = TypeVar("T")
Work = Callable[[], None]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CountDownLatch:
    """Lets one thread wait until others have finished a number of tasks, as in java.util.concurrent."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._zero = threading.Condition()

    def count_down(self) -> None:
        """Takes one off, down to zero."""
        with self._zero:
            self._count = max(0, self._count - 1)
            if self._count == 0:
                self._zero.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for zero. Returns False if the time ran out first."""
        with self._zero:
            return self._zero.wait_for(lambda: self._count == 0, timeout_seconds)


class CopyOnWriteList(Generic[T]):
    """A list that each change replaces whole, as in java.util.concurrent, and that ``close`` makes final.

    RocketMQ never closes its list: a late answer still changes the result of ``registerBrokerAll``.
    """

    def __init__(self) -> None:
        self._items: tuple[T, ...] = ()
        self._closed = False
        self._writing = threading.Lock()

    def append(self, item: T) -> bool:
        """Adds an item at the end. Returns False, and adds nothing, if the list is closed."""
        with self._writing:
            if not self._closed:
                self._items = (*self._items, item)
            return not self._closed

    def close(self) -> tuple[T, ...]:
        """Ends writing and returns the final items."""
        with self._writing:
            self._closed = True
            return self._items


class _Call(NamedTuple):
    work: Work
    ended: Work


class Lane:
    """The calls to one name server, one at a time: a name server that hangs occupies one thread of the pool."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._next: _Call | None = None
        self._running: Future[None] | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits for a thread."""
        with self._lock:
            return self._running is not None

    def submit(self, work: Work, ended: Work = lambda: None, *, after_others: bool = True) -> bool:
        """Runs the work in the pool.

        Args:
            ended: Called when the work has ended, or other work has replaced it, or the lane was closed first.
            after_others: Follow work that runs, and replace work that waits for that; else do nothing then.

        Returns:
            Whether the work is accepted. If not, ``ended`` is not called.
        """
        with self._lock:
            if self._closed or (self._running is not None and not after_others):
                return False
            call, replaced = _Call(work, ended), self._next
            if self._running is None:
                self._running = self._pool.submit(self._run, call)
            else:
                self._next = call
        if replaced is not None:
            replaced.ended()
        return True

    def close(self) -> Future[None] | None:
        """Starts nothing further. Returns the work that still runs."""
        with self._lock:
            self._closed = True
            dropped, self._next = self._next, None
            running = self._running
        if dropped is not None:
            dropped.ended()
        return running

    def _run(self, call: _Call | None) -> None:
        while call is not None:
            try:
                call.work()
            except Exception:  # noqa: BLE001 - the boundary of a pool thread: nobody else would ever see the error
                _log.exception("registration_task_failed")
            with self._lock:
                following, self._next = self._next, None
                if following is None:
                    self._running = None
            call.ended()
            call = following


def call_all(
    lanes: Mapping[NamesrvTarget, Lane],
    call: Callable[[NamesrvTarget], T | None],
    timeout_seconds: float,
    *,
    after_others: bool = False,
) -> tuple[T, ...]:
    """Calls all name servers at once and returns the answers that arrived in time, first answer first.

    Args:
        timeout_seconds: Longest wait. 0 only starts the calls.
        after_others: Follow calls that are in flight, instead of leaving their name servers out.
    """
    latch = CountDownLatch(len(lanes))
    answers: CopyOnWriteList[T] = CopyOnWriteList()

    def run(target: NamesrvTarget) -> None:
        answer = call(target)
        if answer is not None and not answers.append(answer):
            target.state.late_answer()
            _log.warning("late_answer_not_applied", endpoint=str(target.endpoint), answer=repr(answer))

    for target, lane in lanes.items():
        if not lane.submit(partial(run, target), latch.count_down, after_others=after_others):
            latch.count_down()
            _log.debug("call_still_in_flight", endpoint=str(target.endpoint))
    latch.wait(timeout_seconds)
    return answers.close()
