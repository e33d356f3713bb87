"""Returns to the system what floods leave: glibc keeps most of it, because a little of each piece stays in use."""

from __future__ import annotations

import asyncio
import ctypes

PAUSE_SECONDS = 5.0
"""At most 10 s may pass until the memory of a flood is returned."""


async def return_freed_memory(pause_seconds: float = PAUSE_SECONDS) -> None:
    """Has the C library return free memory now and then, where it can (glibc). Runs until cancelled."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while malloc_trim is not None:
        await asyncio.sleep(pause_seconds)
        await asyncio.to_thread(malloc_trim, 0)
