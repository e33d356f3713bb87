"""The removal of clients whose channel ended or that have been silent (RocketMQ: ClientHousekeepingService)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import StreamChannel
from broker_agent.clients.limits import SCAN_SECONDS, STALL_GRACE_SECONDS, STALL_SECONDS
from broker_agent.clients.tables import ClientTables
from broker_agent.timing.periodic_thread import PeriodicThread, Wait

JOIN_SECONDS = 2.0
"""Time for the scan that is under way at the end."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ClientHousekeepingService:
    """Turns ends of channels and silence into removals, in every table at once. Thread-safe."""

    def __init__(self, clock: Callable[[], float], tables: ClientTables, wait: Wait = threading.Event.wait) -> None:
        """Prepares the scans.

        Args:
            clock: Monotonic seconds.
            tables: What is scanned.
            wait: How to wait between two scans.
        """
        self._clock = clock
        self._tables = tables
        self._frozen = False
        self._scan_due = clock() + SCAN_SECONDS
        self._nobody_goes_before = clock()
        self._thread = PeriodicThread(
            "broker-agent-client-scan", self._scan_in_time, first_delay=SCAN_SECONDS, wait=wait
        )

    def start(self) -> None:
        """Scans every 10 s from now on, first after 10 s."""
        self._scan_due = self._clock() + SCAN_SECONDS
        self._thread.start()

    def stop(self) -> None:
        """Ends the scans, and removes nobody any more: channels that the agent ends itself say nothing of clients."""
        self._frozen = True
        self._thread.stop()
        self._thread.join(JOIN_SECONDS)

    def on_channel_close(self, channel: StreamChannel) -> None:
        """The client has ended the stream, or its connection is lost."""
        self._do_channel_close_event(channel, "closed")

    def on_channel_exception(self, channel: StreamChannel) -> None:
        """The stream has failed, or its reader was cut."""
        self._do_channel_close_event(channel, "exception")

    def on_channel_idle(self, channel: StreamChannel) -> None:
        """Nothing was heard over the channel for too long: tells its holder and ends it."""
        channel.close(pb.ClientChannelClosing.REASON_IDLE)
        self._do_channel_close_event(channel, "idle")

    def scan(self) -> None:
        """Ends idle channels and removes silent clients and filter servers. A defect in one part spares the others."""
        now = self._clock()
        if now - self._scan_due > STALL_SECONDS:
            _log.warning("agent_did_not_run", seconds=round(now - self._scan_due, 1))
            self._nobody_goes_before = now + STALL_GRACE_SECONDS
        self._scan_due = now + SCAN_SECONDS
        self._guarded(self._tables.filters.clean)
        if now < self._nobody_goes_before:
            return
        for part in (
            self._close_idle_channels,
            self._scan_clients,
            self._tables.filter_servers.scan_not_active_channel,
        ):
            self._guarded(part)

    def _scan_in_time(self) -> float:
        self.scan()
        return max(0.0, self._scan_due - self._clock())

    def _close_idle_channels(self) -> None:
        for channel in self._tables.channels.idle():
            self.on_channel_idle(channel)

    def _scan_clients(self) -> None:
        producers = self._tables.producers.scan_not_active_channel()
        consumers = self._tables.consumers.scan_not_active_channel()
        if producers or consumers:
            _log.info("silent_clients_removed", producers=producers, consumers=consumers)

    def _do_channel_close_event(self, channel: StreamChannel, why: str) -> None:
        if not self._tables.channels.end(channel) or self._frozen:
            return
        left = self._tables.remove_everywhere(channel)
        _log.debug("client_channel_ended", holder=channel.holder, why=why, memberships=left)

    def _guarded(self, part: Callable[[], object]) -> None:
        try:
            part()
        except Exception:  # noqa: BLE001 - the boundary of a thread: the next scan must come
            _log.exception("client_scan_failed")
