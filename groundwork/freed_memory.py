"""Memory that a flood has left behind: glibc keeps most of it, since a little of each piece stays in use."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

LOOK_SECONDS = 1.0
LEAST_BYTES = 16 * 1024 * 1024
"""What the process must have grown by, beyond what is under way, before any is given back."""

CONNECTION_BYTES, CALL_BYTES = 16 * 1024, 2 * 1024
"""What a connection and a call take, about."""

TRIES, MOST_PAUSE_SECONDS = 6, 8.0
"""Without gauges: how often it is tried in vain before growth is taken for needed, and the longest pause until then."""

LEAST_AGAIN_LOOKS, MOST_AGAIN_LOOKS = 60, 600
"""Looks after which growth that was taken for needed is tried again: the first time, and the longest. A flood may last
longer than all tries, and its leftovers do not grow."""

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that the process has; 0 where the system does not say (Linux does)."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def malloc_trim() -> None:
    """Gives back what is free, where the C library can (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class FreedMemory:
    """Has the system take memory back where the process has grown, and no connection or call accounts for it.

    The size of the process is looked at and not what was under way: a flood can come and go between two looks.
    """

    def __init__(
        self, stats: Callable[[], Mapping[str, int]], resident: Callable[[], int], give_back: Callable[[], object]
    ) -> None:
        """Creates it.

        Args:
            stats: The listener's gauges: connections, calls under way, bytes that come in and that wait for readers.
            resident: Bytes of memory that the process has.
            give_back: Gives back what is free. Blocking.
        """
        self._stats = stats
        self._resident = resident
        self._give_back = give_back
        self._base = self._unaccounted()
        """The least that there was without what is under way, or what could not be given back."""

    def is_due(self) -> bool:
        """Whether it is time to give memory back."""
        unaccounted = self._unaccounted()
        self._base = min(self._base, unaccounted)
        return unaccounted - self._base >= LEAST_BYTES

    def give_back(self) -> None:
        """Gives back what is free. What stays is in use, so that only further growth counts. Blocking."""
        self._give_back()
        self._base = self._unaccounted()

    def _unaccounted(self) -> int:
        """Bytes of the process beyond what connections and calls take."""
        stats = self._stats()
        held = stats["connections"] * CONNECTION_BYTES + stats["calls_under_way"] * CALL_BYTES
        return self._resident() - held - stats["request_bytes"] - stats["waiting_bytes"]

    async def run(self) -> None:
        """Looks once a second. Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.is_due():
                await asyncio.to_thread(self.give_back)


class GrownProcess:
    """Has the system take memory back from a process whose listeners have no gauges: a flood may still be under way.

    So it is tried again, some times, before what the process has grown by counts as needed, and seldom afterwards.
    """

    def __init__(
        self, resident: Callable[[], int] = resident_bytes, give_back: Callable[[], object] = malloc_trim
    ) -> None:
        """Takes how large the process is, and what gives back what is free (blocking)."""
        self._resident = resident
        self._give_back = give_back
        self._base = resident()
        """The least that there was, or what could not be given back."""
        self._in_vain = 0
        self._least = self._base
        """The least that there ever was."""
        self._until_again = self._again_looks = LEAST_AGAIN_LOOKS

    def look(self) -> float:
        """Gives memory back if it is time to. Blocking. Returns the seconds until the next look."""
        size = self._resident()
        self._base, self._least = min(self._base, size), min(self._least, size)
        if size - self._base < LEAST_BYTES:
            self._in_vain = 0
            self._try_again(size)
            return LOOK_SECONDS
        self._give_back()
        left = self._resident()
        self._in_vain = 0 if size - left >= LEAST_BYTES else self._in_vain + 1
        if self._in_vain == TRIES:
            self._base, self._in_vain = left, 0
            self._until_again = self._again_looks = LEAST_AGAIN_LOOKS
        return min(MOST_PAUSE_SECONDS, LOOK_SECONDS * float(1 << self._in_vain))

    def _try_again(self, size: int) -> None:
        """Gives back what has become free since it was taken for needed, if it is time to."""
        if size - self._least < LEAST_BYTES:
            return
        self._until_again -= 1
        if self._until_again == 0:
            self._give_back()
            self._again_looks = min(2 * self._again_looks, MOST_AGAIN_LOOKS)
            self._until_again = self._again_looks

    async def run(self) -> None:
        """Looks now and then. Runs until cancelled."""
        pause = LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = await asyncio.to_thread(self.look)
