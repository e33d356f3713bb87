"""A thread that does one thing again and again until it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

Wait = Callable[[threading.Event, float], bool]
"""Waits until the event is set or that many seconds have passed, and says whether it is set."""

AFTER_BUG_SECONDS = 10.0
"""Pause after the work has raised an unexpected error: too long to fill the log, short enough to recover."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PeriodicThread:
    """Runs a piece of work, waits as long as the work says, and runs it again.

    A daemon, so that work that hangs in the operating system (a name lookup) cannot keep the process from ending.
    """

    def __init__(
        self, name: str, work: Callable[[], float], *, first_delay: float = 0.0, wait: Wait = threading.Event.wait
    ) -> None:
        """Creates it; nothing runs before ``start``.

        Args:
            name: Of the thread.
            work: Does the work once and returns the seconds until it is due again.
            first_delay: Seconds before the first time.
            wait: How to wait; tests put virtual time here.
        """
        self._work = work
        self._first_delay = first_delay
        self._wait = wait
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread. A thread that was told to stop before does nothing."""
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to end after the work that it may be at; does not wait for that."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended, at most so long; returns at once in the thread itself."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        delay = self._first_delay
        while not (self._wait(self._stopping, delay) if delay > 0 else self._stopping.is_set()):
            try:
                delay = self._work()
            except Exception:  # noqa: BLE001 - the boundary of a thread: nobody else would ever see the error
                _log.exception("periodic_work_failed", thread=self._thread.name)
                delay = AFTER_BUG_SECONDS
