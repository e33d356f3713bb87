"""A count of the event loop's tasks."""

from __future__ import annotations

import asyncio
import math

COUNT_SECONDS = 1.0
"""Shortest time between two counts: one takes 3 ms with 10,000 tasks, and callers may ask for the status again and
again.
"""


class TaskCount:
    """Counts the tasks of the event loop, at most once in ``COUNT_SECONDS``."""

    def __init__(self) -> None:
        self._counted_at = -math.inf
        self._count = 0

    def latest(self) -> int:
        """How many there are, or were within the last second. Call it on the event loop."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._count = now, len(asyncio.all_tasks())
        return self._count
