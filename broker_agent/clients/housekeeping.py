"""The removal of clients whose channel ended or that have been silent (RocketMQ: ClientHousekeepingService)."""

from __future__ import annotations

import asyncio

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import StreamChannel
from broker_agent.clients.limits import SCAN_SECONDS, STALL_GRACE_SECONDS, STALL_SECONDS
from broker_agent.clients.managers import ClientManagers

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ClientHousekeepingService:
    """Removes clients whose channel ends or falls silent from every table, in the event loop of ``ClientServer``."""

    def __init__(self, managers: ClientManagers) -> None:
        self._managers = managers
        self._clock = managers.timing.clock
        self._scan_due = self._clock() + SCAN_SECONDS
        self._nobody_goes_before = self._clock()

    async def run(self) -> None:
        """Scans every 10 s, first after 10 s."""
        self._scan_due = self._clock() + SCAN_SECONDS
        while True:
            await asyncio.sleep(max(0.0, self._scan_due - self._clock()))
            try:
                self.scan()
            except Exception:  # noqa: BLE001 - the boundary of a task: the next scan must come
                _log.exception("client_scan_failed")

    def on_channel_close(self, channel: StreamChannel, why: str = "closed") -> None:
        """The stream has ended: by the client, with its connection, or because it failed."""
        managers = self._managers
        with managers.step():
            if managers.channels.end(channel):
                tables = (managers.producers, managers.consumers, managers.filter_servers)
                left = sum(table.do_channel_close_event(channel) for table in tables)
                _log.debug("client_channel_ended", remote_addr=channel.remote_addr, why=why, memberships=left)

    def scan(self) -> None:
        """Ends idle channels, and removes silent clients and filter servers."""
        now, managers = self._clock(), self._managers
        if now - self._scan_due > STALL_SECONDS:
            _log.warning("agent_did_not_run", seconds=round(now - self._scan_due, 1))
            self._nobody_goes_before = now + STALL_GRACE_SECONDS
        self._scan_due = now + SCAN_SECONDS
        with managers.lock:
            managers.filters.clean()
        if now < self._nobody_goes_before:
            return
        for channel in managers.channels.idle():
            channel.close(pb.ClientChannelClosing.REASON_IDLE)
            self.on_channel_close(channel, "idle")
        with managers.step():
            producers = managers.producers.scan_not_active_channel()
            consumers = managers.consumers.scan_not_active_channel()
            managers.filter_servers.scan_not_active_channel()
        if producers or consumers:
            _log.info("silent_clients_removed", producers=producers, consumers=consumers)
