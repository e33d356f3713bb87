"""Log lines that peers cause: however many there are, few are written, and these say how many were not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


class RateLimitedLog:
    """Logs one event, in a flood only now and then. The next line has the suppressed number. Thread-safe."""

    def __init__(
        self,
        event: str,
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        burst: int = 1,
        level: int = logging.WARNING,
    ) -> None:
        """Has logged nothing yet.

        Args:
            seconds: Time for which a line stands.
            burst: Lines that may be logged at once after a silence of as many times ``seconds``.
            level: Of the lines, as ``logging`` counts levels.
        """
        self._event = event
        self._level = level
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ahead = seconds * (burst - 1)
        """How far lines may be told ahead of their time."""
        self._next_at = float("-inf")
        self._not_told = 0

    def log(self, **fields: Any) -> None:
        now = self._monotonic()
        with self._lock:
            if now < self._next_at - self._ahead:
                self._not_told += 1
                return
            not_told, self._not_told = self._not_told, 0
            self._next_at = max(self._next_at, now) + self._seconds
        _log.log(self._level, self._event, **fields, not_told=not_told)
