"""The clearing up of what calls leave behind when they end, while other work has its turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from namesrv.app.writer import collecting, run_cooperatively
from namesrv.core.slices import Leftovers


async def clear_up(leftovers: Leftovers) -> None:
    """Clears up whenever there is something. Runs until cancelled."""
    more, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_more() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(more.set)  # a thread may be the last that holds a snapshot

    leftovers.on_more = on_more
    while True:
        await run_cooperatively(collecting(leftovers.clear_up()))
        more.clear()
        await more.wait()
