"""The clearing up of what calls leave behind when they end, while other work has its turn."""

from __future__ import annotations

import asyncio

from namesrv.app.writer import collecting, run_cooperatively
from namesrv.core.slices import Leftovers


async def clear_up(leftovers: Leftovers) -> None:
    """Clears up whenever there is something. Runs until cancelled."""
    more = asyncio.Event()
    leftovers.on_more = more.set
    while True:
        await run_cooperatively(collecting(leftovers.clear_up()))
        more.clear()
        await more.wait()
