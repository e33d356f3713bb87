"""A count of the event loop's tasks."""

from __future__ import annotations

import asyncio
import math

COUNT_SECONDS = 1.0
"""Counting takes 3 ms where there are 10,000 tasks, and whoever may ask for the status may ask again and again."""


class TaskCount:
    """Counts the tasks of the event loop, at most once in ``COUNT_SECONDS``."""

    def __init__(self) -> None:
        self._counted_at = -math.inf
        self._count = 0

    def latest(self) -> int:
        """How many there are, or were within the last second. To be called on the event loop."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._count = now, len(asyncio.all_tasks())
        return self._count
