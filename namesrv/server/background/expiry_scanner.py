"""Scans for brokers and channels that have been silent for too long."""

from __future__ import annotations

import asyncio

from namesrv_api.v1 import registration_service_pb2

from namesrv.core.registrations import RouteInfoManager
from namesrv.server.background.channel_streams import ChannelStreams
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.route_logging import log_removed

FIRST_SCAN_SECONDS = 5.0
"""When the first scan runs (RocketMQ: NamesrvController.initialize)."""

_IDLE = registration_service_pb2.ChannelClosing.REASON_IDLE


class ExpiryScanner:
    """Scans again and again (RocketMQ: the schedule of scanNotActiveBroker). The pause may change at any time."""

    def __init__(
        self, manager: RouteInfoManager, writer: TableWriter, channels: ChannelStreams, stall_detector: StallDetector
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._channels = channels
        self._stall_detector = stall_detector
        self._interval = 0.0
        self._interval_changed = asyncio.Event()

    def set_interval(self, seconds: float) -> None:
        """Sets the pause between two scans; 0 stops them."""
        if seconds != self._interval:
            self._interval = seconds
            self._interval_changed.set()

    async def run(self) -> None:
        """Scans until cancelled."""
        longest = FIRST_SCAN_SECONDS
        while True:
            try:
                async with asyncio.timeout(min(self._interval, longest) or None):
                    await self._interval_changed.wait()
            except TimeoutError:
                longest = self._interval
                await self._scan()
            else:
                self._interval_changed.clear()
                longest = max(longest, self._interval)

    async def _scan(self) -> None:
        self._stall_detector.check()
        for gone in await self._writer.apply_unbounded(self._manager.scan_not_active_broker()):
            log_removed(gone)
            self._close_if_empty(gone.live.channel_id)
        for channel_id in await self._writer.apply_unbounded(self._manager.idle_channels()):
            self._channels.close(channel_id, _IDLE)

    def _close_if_empty(self, channel_id: str | None) -> None:
        """Closes the channel of an expired broker, so that a living agent behind it reopens and registers."""
        if channel_id is not None and not self._manager.channels.bound(channel_id):
            self._channels.close(channel_id, _IDLE)
