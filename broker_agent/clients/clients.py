"""All clients of the broker: one heartbeat, end or silence is one step in all tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import ClientChannels, PlainClient, StreamChannel
from broker_agent.clients.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.filter_servers import FilterServerManager
from broker_agent.clients.groups import (
    ConsumerManager,
    DefaultConsumerIdsChangeListener,
    ProducerManager,
)
from broker_agent.clients.limits import MAX_CHANNELS, SCAN_SECONDS, STALL_GRACE_SECONDS, STALL_SECONDS
from broker_agent.clients.records import ClientChannel, ClientChannelInfo, HeartbeatData
from broker_agent.errors import Reason, Refused, channel_gone
from broker_agent.timing import PeriodicThread, Timing, Wait
from groundwork.shares import MACHINE, Sharer

# The tables that clients are in, together.


@dataclass(frozen=True, slots=True)
class ClientTables:
    """Every table that has something of clients."""

    lock: AbstractContextManager[object]
    """Reentrant; producers and consumers share it, so that one heartbeat is one step."""
    channels: ClientChannels
    producers: ProducerManager
    consumers: ConsumerManager
    filters: ConsumerFilterManager
    filter_servers: FilterServerManager
    listener: DefaultConsumerIdsChangeListener
    """What the consumers' table tells."""

    @classmethod
    def empty(
        cls,
        timing: Timing,
        *,
        notify_consumer_ids_changed_enable: bool,
        max_channels: int,
    ) -> ClientTables:
        lock = threading.RLock()
        filters = ConsumerFilterManager(timing)
        listener = DefaultConsumerIdsChangeListener(
            filters, notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable
        )
        return cls(
            lock,
            ClientChannels(timing.clock, max_channels),
            ProducerManager(timing.clock, lock),
            ConsumerManager(timing.clock, lock, listener),
            filters,
            FilterServerManager(timing.clock),
            listener,
        )

    def remove_everywhere(self, channel: ClientChannel) -> int:
        """Takes a client out of every table. Returns how many memberships ended."""
        producer_groups = self.producers.do_channel_close_event(channel)
        consumer_groups = self.consumers.do_channel_close_event(channel)
        was_filter_server = self.filter_servers.do_channel_close_event(channel)
        return len(producer_groups) + len(consumer_groups) + was_filter_server


# Calls of clients on records that have been checked (RocketMQ: ClientManageProcessor).


class ClientManageProcessor:
    """Registers and unregisters clients, each call as a whole or not at all. Thread-safe."""

    def __init__(self, tables: ClientTables) -> None:
        self._tables = tables

    def heart_beat(
        self, channel_id: str | None, remote_addr: str, now: float, data: HeartbeatData, sharer: Sharer = MACHINE
    ) -> list[str]:
        """Registers or renews a client in all groups of its heartbeat.

        Args:
            channel_id: The client's channel; None if it holds none.
            remote_addr: Address that it calls from.
            now: Monotonic seconds.
            sharer: The caller, which has half of the groups and memberships.

        Returns:
            The consumer groups that it changed.

        Raises:
            CHANNEL_GONE: The channel is not open.
            LIMIT_EXCEEDED: There is no room for it. Nothing has changed.
        """
        with self._tables.lock:  # the end of the channel waits, and then finds all that is registered here
            channel = self._channel(channel_id, data.client_id, remote_addr)
            self._tables.producers.check_room(channel, data.producer_groups, sharer)
            self._tables.consumers.check_room(channel, data.consumers, sharer)
            info = ClientChannelInfo(channel, data.client_id, data.language, data.version, now, remote_addr, sharer)
            for group in data.producer_groups:
                self._tables.producers.register_producer(group, info)
            return [
                consumer.group
                for consumer in data.consumers
                if self._tables.consumers.register_consumer(info, consumer)
            ]

    def unregister_client(
        self, channel_id: str | None, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> bool:
        """Takes a client out of the groups that are named, or out of all if none is. Returns whether it was in one.

        Succeeds if the channel has ended: its end has removed everything.
        """
        with self._tables.lock:
            try:
                channel = self._channel(channel_id, client_id, "")
            except Refused as error:
                if error.reason != Reason.CHANNEL_GONE:
                    raise
                return False
            removed = False
            if producer_group is not None:
                removed |= self._tables.producers.unregister_producer(producer_group, channel)
            if consumer_group is not None:
                removed |= self._tables.consumers.unregister_consumer(consumer_group, channel)
            if producer_group is None and consumer_group is None:
                left = (
                    *self._tables.producers.do_channel_close_event(channel),
                    *self._tables.consumers.do_channel_close_event(channel),
                )
                removed = bool(left)
            return removed

    def register_filter_server(self, channel_id: str | None, remote_addr: str, addr: str) -> None:
        """Registers or renews a filter server.

        Raises:
            CHANNEL_GONE: The channel is not open.
            LIMIT_EXCEEDED: There would be too many.
        """
        channel = self._channel(channel_id, f"filter server {addr}", remote_addr)
        # Not under the lock, as the listeners of filter servers must be free to take locks of their own.
        self._tables.filter_servers.register_filter_server(channel, addr)
        if channel_id is not None and self._tables.channels.find(channel_id) is None:
            self._tables.remove_everywhere(channel)  # its end came in between and found nothing
            raise channel_gone()

    def _channel(self, channel_id: str | None, client_id: str, remote_addr: str) -> ClientChannel:
        return PlainClient(client_id, remote_addr) if channel_id is None else self._tables.channels.heard(channel_id)


# The removal of clients whose channel ended or that have been silent (RocketMQ: ClientHousekeepingService).

JOIN_SECONDS = 2.0
"""Time for the scan that is under way at the end."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ClientHousekeepingService:
    """Turns ends of channels and silence into removals, in every table at once. Thread-safe."""

    def __init__(self, clock: Callable[[], float], tables: ClientTables, wait: Wait = threading.Event.wait) -> None:
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


# The state of all clients, assembled.


class ClientManagers:
    """Producers, consumers, their filters, filter servers and channels, and the scan that removes the silent.

    Needs no listener: ``ClientServer`` serves it. Thread-safe.
    """

    def __init__(
        self,
        timing: Timing | None = None,
        *,
        notify_consumer_ids_changed_enable: bool = True,
        max_channels: int = MAX_CHANNELS,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Makes empty tables; nothing runs before ``start``."""
        self.timing = timing or Timing()
        self.tables = ClientTables.empty(
            self.timing,
            notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
            max_channels=max_channels,
        )
        self.housekeeping = ClientHousekeepingService(self.timing.clock, self.tables, wait)
        self.processor = ClientManageProcessor(self.tables)

    def filter_servers(self) -> tuple[str, ...]:
        """Addresses of the filter servers for the registration, sorted. Takes no lock."""
        return self.tables.filter_servers.filter_servers

    def on_filter_servers_change(self, listener: Callable[[], None]) -> None:
        """Calls the listener after every change of ``filter_servers``, in whichever thread made it, outside all locks.

        Changes of two threads may be told in either order, so the listener gets no value: it reads the newest.
        """
        self.tables.filter_servers.on_change(listener)

    def start(self) -> None:
        self.housekeeping.start()

    def stop(self) -> None:
        """Ends the scan; from now on the end of a channel removes nobody. Call it before the listener stops."""
        self.housekeeping.stop()
