"""The state of all clients: every table, and the lock under which one heartbeat, end or silence is one step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import limits
from broker_agent.clients.channels import ClientChannel, ClientChannels, PlainClient, StreamChannel
from broker_agent.clients.groups import ClientChannelInfo, ConsumerFilterManager, ConsumerManager, ProducerManager
from broker_agent.timing import Timing
from namesrv_common.errors import limit_exceeded
from namesrv_common.server.shares import MACHINE, Sharer

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FilterServerManager:
    """The filter servers next to the broker, by channel (RocketMQ 4). ``ClientManagers`` owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._servers: dict[ClientChannel, tuple[str, float]] = {}  # to the address, and when it was last heard
        self.on_change: Callable[[tuple[str, ...]], None] = lambda _addresses: None
        """Called with the addresses, also with equal ones, under the lock of ``ClientManagers``."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Sorted, each once (RocketMQ: buildNewFilterServerList). May be read without the lock."""
        return tuple(sorted({addr for addr, _last_update in tuple(self._servers.values())}))

    def register_filter_server(self, channel: ClientChannel, addr: str) -> None:
        """Adds a filter server, or renews it. Raises LIMIT_EXCEEDED."""
        if channel not in self._servers:
            if len(self._servers) >= limits.MAX_FILTER_SERVERS:
                raise limit_exceeded("filter servers", len(self._servers) + 1, limits.MAX_FILTER_SERVERS)
            _log.info("filter_server_registered", addr=addr, remote_addr=channel.remote_addr)
        self._servers[channel] = addr, self._clock()
        self.on_change(self.addresses)

    def do_channel_close_event(self, channel: ClientChannel) -> int:
        return self._remove([channel] if channel in self._servers else [], "channel_closed")

    def scan_not_active_channel(self) -> int:
        oldest_kept = self._clock() - limits.FILTER_SERVER_SILENCE_SECONDS
        silent = [channel for channel, (_addr, last_update) in self._servers.items() if last_update < oldest_kept]
        return self._remove(silent, "silent")

    def _remove(self, channels: list[ClientChannel], why: str) -> int:
        for channel in channels:
            _log.info("filter_server_left", addr=self._servers.pop(channel)[0], why=why)
            self.on_change(self.addresses)
        return len(channels)


class ClientManagers:
    """Producers, consumers, their filters, filter servers and channels. ``ClientServer`` serves it.

    Whatever reads or changes a table holds ``lock``; only the event loop of ``ClientServer`` changes one.
    """

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.lock = threading.Lock()
        self.channels = ClientChannels(self.timing.clock)
        self.producers = ProducerManager(self.timing.clock)
        self.filters = ConsumerFilterManager(self.timing)
        self.consumers = ConsumerManager(self.timing.clock, self.filters)
        self.filter_servers = FilterServerManager(self.timing.clock)
        self._scan_due = self.timing.clock() + limits.SCAN_SECONDS
        self._nobody_goes_before = self.timing.clock()

    def heart_beat(self, request: pb.HeartbeatRequest, remote_addr: str, sharer: Sharer = MACHINE) -> list[str]:
        """Registers or renews a client in all groups of a checked heartbeat. Returns the consumer groups that changed.

        Raises CHANNEL_GONE or LIMIT_EXCEEDED. Nothing has changed then.
        """
        with self.lock:
            channel = self._channel(request.channel_id, request.client_id, remote_addr)
            producer_groups = [data.group_name for data in request.producer_groups]
            self.producers.check_can_join(channel, producer_groups, sharer)
            self.consumers.check_can_register(channel, request.consumer_groups, sharer)
            names = request.client_id, request.language, request.version
            info = ClientChannelInfo(channel, *names, self.timing.clock(), remote_addr, sharer)
            for group in producer_groups:
                self.producers.register_producer(group, replace(info))
            consumers = request.consumer_groups
            return [data.group_name for data in consumers if self.consumers.register_consumer(replace(info), data)]

    def unregister_client(self, request: pb.UnregisterClientRequest) -> bool:
        """Takes a client out of the groups that are named, or of all if none is. Reports whether it was in one."""
        with self.lock:
            if request.channel_id and not self.channels.is_open(request.channel_id):
                return False  # the end of the channel has removed everything
            channel = self._channel(request.channel_id, request.client_id)
            if request.HasField("producer_group") or request.HasField("consumer_group"):
                produced = self.producers.unregister(request.producer_group, channel)
                return self.consumers.unregister(request.consumer_group, channel) or produced
            left = self.producers.do_channel_close_event(channel) + self.consumers.do_channel_close_event(channel)
            return bool(left)

    def register_filter_server(self, request: pb.RegisterFilterServerRequest, remote_addr: str) -> None:
        """Registers or renews a filter server. Raises CHANNEL_GONE or LIMIT_EXCEEDED."""
        addr = request.filter_server_addr
        with self.lock:
            channel = self._channel(request.channel_id, f"filter server {addr}", remote_addr)
            self.filter_servers.register_filter_server(channel, addr)

    def on_channel_close(self, channel: StreamChannel, why: str = "closed") -> None:
        """The stream has ended: by the client, with its connection, or because it failed."""
        with self.lock:
            if self.channels.end(channel):
                tables = (self.producers, self.consumers, self.filter_servers)
                left = sum(table.do_channel_close_event(channel) for table in tables)
                _log.debug("client_channel_ended", remote_addr=channel.remote_addr, why=why, memberships=left)

    async def scan_periodically(self) -> None:
        """Scans every 10 s, first after 10 s (RocketMQ: ClientHousekeepingService)."""
        self._scan_due = self.timing.clock() + limits.SCAN_SECONDS
        while True:
            await asyncio.sleep(max(0.0, self._scan_due - self.timing.clock()))
            try:
                self.scan()
            except Exception:  # noqa: BLE001 - the boundary of a task: the next scan must come
                _log.exception("client_scan_failed")

    def scan(self) -> None:
        """Ends idle channels, and removes silent clients and filter servers."""
        now = self.timing.clock()
        if now - self._scan_due > limits.STALL_SECONDS:
            _log.warning("agent_did_not_run", seconds=round(now - self._scan_due, 1))
            self._nobody_goes_before = now + limits.STALL_GRACE_SECONDS
        self._scan_due = now + limits.SCAN_SECONDS
        with self.lock:
            self.filters.clean()
        if now < self._nobody_goes_before:
            return
        for channel in self.channels.idle():
            channel.close(pb.ClientChannelClosing.REASON_IDLE)
            self.on_channel_close(channel, "idle")
        with self.lock:
            producers = self.producers.scan_not_active_channel()
            consumers = self.consumers.scan_not_active_channel()
            self.filter_servers.scan_not_active_channel()
        if producers or consumers:
            _log.info("silent_clients_removed", producers=producers, consumers=consumers)

    def _channel(self, channel_id: str, client_id: str, remote_addr: str = "") -> ClientChannel:
        return self.channels.heard(channel_id) if channel_id else PlainClient(client_id, remote_addr)
