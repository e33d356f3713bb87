"""The threads that call name servers (RocketMQ: brokerOuterExecutor)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


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
        self.threads = threads
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
