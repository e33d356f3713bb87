"""The signals that end a program with an event loop."""

from __future__ import annotations

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on. Call it in the running loop, in the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
