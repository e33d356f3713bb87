"""The log of refused calls: a flood of them makes few lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from groundwork.errors import CallRefused
from groundwork.flood_log import FloodLog

REFUSAL_LOG_SECONDS = 1.0
"""Between two log lines about refused calls; those in between are counted."""


class RefusalLog:
    """Tells of refused calls, once a second at most. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = FloodLog("call_refused", REFUSAL_LOG_SECONDS, monotonic)

    def refused(self, call: str, peer: str, error: CallRefused) -> None:
        """Logs that a call was refused, and how many before it have no line."""
        self._log.tell(call=call, peer=peer, problem=error.message)
