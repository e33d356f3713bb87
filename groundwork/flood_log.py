"""Log lines that peers cause: however many there are, few are written, and these say how many were not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


class FloodLog:
    """Warns of one event, at most once in some seconds; the next line says how often it was not told. Thread-safe."""

    def __init__(self, event: str, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told_at = float("-inf")
        self._not_told = 0

    def tell(self, **fields: Any) -> None:
        """It has happened."""
        now = self._monotonic()
        with self._lock:
            if now - self._told_at < self._seconds:
                self._not_told += 1
                return
            not_told, self._told_at, self._not_told = self._not_told, now, 0
        _log.warning(self._event, **fields, not_told=not_told)
