"""Memory that a flood has left behind: glibc keeps most of it, since a little of each piece stays in use."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable, Mapping

LOOK_SECONDS = 1.0
LEAST_BYTES = 16 * 1024 * 1024
"""What must have become free, by our count, before any is given back."""

CONNECTION_BYTES, CALL_BYTES = 16 * 1024, 2 * 1024
"""What a connection and a call take, about."""


class FreedMemory:
    """Has the system take memory back when much less is under way than was before."""

    def __init__(self, stats: Callable[[], Mapping[str, int]], give_back: Callable[[], object]) -> None:
        """Creates it.

        Args:
            stats: The engine's gauges.
            give_back: Gives back what is free. Blocking.
        """
        self._stats = stats
        self._give_back = give_back
        self._most = 0

    def look(self) -> bool:
        """Whether it is time to give memory back."""
        stats = self._stats()
        held = stats["connections"] * CONNECTION_BYTES + stats["calls_under_way"] * CALL_BYTES
        held += stats["assembling_bytes"] + stats["waiting_bytes"]
        self._most = max(self._most, held)
        if self._most - held < max(LEAST_BYTES, self._most // 2):
            return False
        self._most = held
        return True

    async def run(self) -> None:
        """Looks once a second. Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.look():
                await asyncio.to_thread(self._give_back)


def malloc_trim() -> None:
    """Gives back what is free, where the C library can (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
