"""One name server's place in the thread pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import structlog

from broker_agent.fan_out.outer_executor import OuterExecutor

Work = Callable[[], None]


def _nothing() -> None:
    pass


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Turn(NamedTuple):
    """Work, and the function to call when it has ended."""

    work: Work
    ended: Work


class TargetLane:
    """Gives one name server at most one thread of the pool, however slow it is.

    With as many threads as lanes, a name server that hangs neither takes a thread from the others nor piles up work.
    """

    def __init__(self, pool: OuterExecutor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._next: _Turn | None = None
        self._running: Future[None] | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether something runs or waits for a thread."""
        with self._lock:
            return self._running is not None

    def offer(self, work: Work, ended: Work = _nothing) -> bool:
        """Runs the work in the pool unless something runs already.

        Args:
            work: What to do.
            ended: Called when it has ended and the lane is free again.

        Returns:
            Whether the work will be run; if not, ``ended`` is not called either.
        """
        with self._lock:
            if self._running is not None or self._closed:
                return False
            return self._start(_Turn(work, ended))

    def put(self, work: Work, ended: Work = _nothing) -> bool:
        """Runs the work in the pool, right after the work that runs already. It replaces work that waits for the same.

        Args:
            work: What to do.
            ended: Called when it has ended, or other work has taken its place, or the lane was closed first.

        Returns:
            Whether the work will be run, unless other work is put or the lane closed first; if not, ``ended`` is not
            called either.
        """
        with self._lock:
            if self._closed:
                return False
            if self._running is None:
                return self._start(_Turn(work, ended))
            replaced, self._next = self._next, _Turn(work, ended)
        if replaced is not None:
            replaced.ended()
        return True

    def close(self) -> Future[None] | None:
        """Starts nothing further. Returns the work that still runs, to be waited for."""
        with self._lock:
            self._closed = True
            dropped, self._next = self._next, None
            running = self._running
        if dropped is not None:
            dropped.ended()
        return running

    def _start(self, turn: _Turn) -> bool:
        self._running = self._pool.submit(lambda: self._run(turn))
        if self._running is None:
            _log.warning("call_refused", error="too many calls to name servers wait for a thread")
        return self._running is not None

    def _run(self, first: _Turn) -> None:
        turn: _Turn | None = first
        while turn is not None:
            try:
                turn.work()
            except Exception:  # noqa: BLE001 - the boundary of a pool thread: nobody else would ever see the error
                _log.exception("registration_task_failed")
            with self._lock:
                following, self._next = self._next, None
                if following is None:
                    self._running = None
            turn.ended()
            turn = following
