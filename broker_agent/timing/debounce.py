"""Debounced changes: many within a moment make one registration (upstream's #3407: one for each new topic)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from broker_agent.timing.clock import Timing

QUIET_SECONDS = 0.1
"""Time from the last change to the registration. It is short because most changes come alone."""
LONGEST_SECONDS = 1.5
"""Longest time from the first change to the registration, however many changes follow."""
BETWEEN_SECONDS = 1.0
"""Time from one such registration to the next one."""
JOIN_SECONDS = 2.0
"""Time for the thread to end."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Debounce:
    """When a registration is due for the changes so far. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._done: float | None = None

    def changed(self, now: float) -> None:
        """Something has changed."""
        if self._first is None:
            self._first = now
        self._last = now

    def due(self) -> float | None:
        """When the registration is due; None if nothing has changed."""
        if self._first is None:
            return None
        due = min(self._last + QUIET_SECONDS, self._first + LONGEST_SECONDS)
        return due if self._done is None else max(due, self._done + BETWEEN_SECONDS)

    def done(self, now: float) -> None:
        """A registration with all changes so far begins."""
        self._first, self._done = None, now


class ChangeThread:
    """Calls once for many changes, in a thread of its own."""

    def __init__(self, register: Callable[[], None], timing: Timing) -> None:
        """Creates it; nothing is called before ``start``.

        Args:
            register: What to call.
            timing: Clock.
        """
        self._register = register
        self._timing = timing
        self._coalescing = Debounce()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="broker-agent-changes", daemon=True)

    def start(self) -> None:
        """Calls from now on, for changes before as well."""
        self._thread.start()

    def changed(self) -> None:
        """Something has changed. Returns at once."""
        with self._changed:
            self._coalescing.changed(self._timing.clock())
            self._changed.notify_all()

    def stop(self) -> None:
        """Calls nothing further and ends the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while self._wait_until_due():
            try:
                self._register()
            except Exception:  # noqa: BLE001 - the boundary of a thread: nobody else would ever see the error
                _log.exception("registration_of_changes_failed")

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._stopping:
                due = self._coalescing.due()
                now = self._timing.clock()
                if due is not None and due <= now:
                    self._coalescing.done(now)
                    return True
                self._changed.wait(None if due is None else due - now)
            return False
