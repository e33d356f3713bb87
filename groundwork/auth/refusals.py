"""The log of refused calls: a flood of them makes few lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from groundwork.errors import CallRefused

REFUSAL_LOG_SECONDS = 1.0
"""Between two log lines about refused calls; those in between are counted."""

_log = structlog.get_logger(__name__)


class RefusalLog:
    """Tells of refused calls, once a second at most. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told_at = float("-inf")
        self._not_told = 0

    def refused(self, call: str, peer: str, error: CallRefused) -> None:
        """Logs that a call was refused, and how many before it have no line."""
        now = self._monotonic()
        with self._lock:
            if now - self._told_at < REFUSAL_LOG_SECONDS:
                self._not_told += 1
                return
            not_told, self._told_at, self._not_told = self._not_told, now, 0
        _log.warning("call_refused", call=call, peer=peer, problem=error.message, not_told=not_told)
