"""One name server's place in the thread pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

import structlog

Work = Callable[[], None]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TargetLane:
    """Gives one name server at most one thread of the pool, however slow it is.

    With as many threads as lanes, a name server that hangs neither takes a thread from the others nor piles up work.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._next: Work | None = None
        self._running: Future[None] | None = None
        self._closed = False

    def offer(self, work: Work) -> bool:
        """Runs the work in the pool unless something runs already.

        Returns:
            Whether the work will be run.
        """
        with self._lock:
            if self._running is not None or self._closed:
                return False
            self._running = self._pool.submit(self._run, work)
            return True

    def put(self, work: Work) -> bool:
        """Runs the work in the pool, right after what runs already; takes the place of work that waits for that.

        Returns:
            Whether the work will be run, unless other work is put or the lane closed first.
        """
        with self._lock:
            if self._closed:
                return False
            if self._running is None:
                self._running = self._pool.submit(self._run, work)
            else:
                self._next = work
            return True

    def close(self) -> Future[None] | None:
        """Starts nothing further. Returns what still runs, to be waited for."""
        with self._lock:
            self._closed = True
            self._next = None
            return self._running

    def _run(self, work: Work) -> None:
        following: Work | None = work
        while following is not None:
            try:
                following()
            except Exception:  # noqa: BLE001 - the boundary of a pool thread: nobody else would ever see the error
                _log.exception("registration_task_failed")
            with self._lock:
                following, self._next = self._next, None
                if following is None:
                    self._running = None
