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
"""How often it is tried in vain before growth is taken for needed, and the longest pause until then."""

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


def unaccounted(stats: Callable[[], Mapping[str, int]], resident: Callable[[], int] = resident_bytes) -> int:
    """Bytes of the process beyond those of the connections and calls that a listener's gauges count."""
    now = stats()
    held = now["connections"] * CONNECTION_BYTES + now["calls_under_way"] * CALL_BYTES
    return resident() - held - now["request_bytes"] - now["waiting_bytes"]


class GrownProcess:
    """Has the system take memory back from a process that has grown.

    A flood may be under way, or Python may still release what a flood has left. So it is tried again some times before
    what the process has grown by counts as needed, and seldom afterwards.
    """

    def __init__(
        self, resident: Callable[[], int] = resident_bytes, give_back: Callable[[], object] = malloc_trim
    ) -> None:
        """Takes the memory of the process, in total or beyond the known use; ``give_back`` may block."""
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
