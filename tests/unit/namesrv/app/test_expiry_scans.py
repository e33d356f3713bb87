"""ExpiryScanner: when it scans."""

from __future__ import annotations

import asyncio

import pytest

from namesrv.app import upkeep
from namesrv.app.channels import ChannelStreams
from namesrv.app.stall_detector import StallDetector
from namesrv.app.upkeep import ExpiryScanner
from namesrv.app.writer import TableWriter
from tests.support.core_fleet import Fleet


async def test_the_first_scan_does_not_wait_for_the_interval(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FIRST_SCAN_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    scanned = asyncio.Event()
    monkeypatch.setattr(StallDetector, "check", lambda _: scanned.set())

    writer = TableWriter()
    detector = StallDetector(fleet.clock.monotonic, fleet.heartbeats.grant_more_time, 10.0)
    scans = ExpiryScanner(fleet.state, writer, ChannelStreams(fleet.state, writer, detector), detector)
    scans.interval = 3_600.0
    scanning = asyncio.create_task(scans.run())
    async with asyncio.timeout(20):
        await scanned.wait()
    scanning.cancel()
