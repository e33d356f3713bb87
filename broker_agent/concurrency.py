"""A count-down latch, a copy-on-write list and a bounded pool, as java.util.concurrent has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

# A count-down latch as java.util.concurrent has it: RocketMQ's BrokerOuterAPI joins its tasks with one.


class CountDownLatch:
    """Lets one thread wait until others have finished a number of tasks."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count {count} is negative")
        self._count = count
        self._zero = threading.Condition()

    def count_down(self) -> None:
        """Takes one off. At zero all waiters go on; the count never goes below zero."""
        with self._zero:
            self._count = max(0, self._count - 1)
            if self._count == 0:
                self._zero.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for zero. Returns False if the time ran out first."""
        with self._zero:
            return self._zero.wait_for(lambda: self._count == 0, timeout_seconds)


# A copy-on-write list as java.util.concurrent has it: RocketMQ's BrokerOuterAPI collects its answers in one.

T = TypeVar("T")


class CopyOnWriteList(Generic[T]):
    """A list that is replaced whole by every change, so that readers need no lock and see no change.

    Unlike the original it can be closed: the tuple that ``close`` returns is final. In RocketMQ a late answer still
    lands in the list that the caller of ``registerBrokerAll`` already holds.
    """

    def __init__(self) -> None:
        self._items: tuple[T, ...] = ()
        self._closed = False
        self._writing = threading.Lock()

    def append(self, item: T) -> bool:
        """Adds an item at the end. Returns False, and adds nothing, if the list has been closed."""
        with self._writing:
            if self._closed:
                return False
            self._items = (*self._items, item)
            return True

    def close(self) -> tuple[T, ...]:
        """Ends writing and returns the final items."""
        with self._writing:
            self._closed = True
            return self._items


# The threads that call name servers (RocketMQ: brokerOuterExecutor).


class OuterExecutor:
    """A pool with a bound on threads and on work that waits for one.

    RocketMQ's pool throws when it is full, and nothing catches that, so the latch of the round never counts down. Here
    the caller learns of it and counts down itself.
    """

    def __init__(self, threads: int, queue: int) -> None:
        """Creates it.

        Args:
            threads: Most pieces of work at once. Below the number of name servers, some wait for others.
            queue: Most pieces of work that wait for a thread.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="broker-agent-outer")
        self._free = threading.Semaphore(threads + queue)

    def submit(self, work: Callable[[], None]) -> Future[None] | None:
        """Runs the work as soon as a thread is free; None if it is not run because too much waits already."""
        if not self._free.acquire(blocking=False):
            return None
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # the pool has been shut down
            self._free.release()
            return None
        future.add_done_callback(lambda _done: self._free.release())
        return future

    def shutdown(self, *, wait: bool) -> None:
        """Ends the threads; drops what waits for one."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
