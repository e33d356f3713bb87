"""The expiry of pinned snapshots that nobody asks for any more."""

from __future__ import annotations

import asyncio

from namesrv.core.pins import Pins

PIN_CHECK_SECONDS = 5.0
"""Pause between two looks for pins whose lease has ended."""


async def drop_expired_pins(pins: Pins) -> None:
    """Drops those whose lease has ended. Runs until cancelled."""
    while True:
        await asyncio.sleep(PIN_CHECK_SECONDS)
        pins.drop_expired()
