"""The state of all clients: every table, and the lock under which one heartbeat, end or silence is one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import ClientChannel, ClientChannels, PlainClient
from broker_agent.clients.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.consumer_manager import ConsumerManager
from broker_agent.clients.filter_server_manager import FilterServerManager
from broker_agent.clients.producer_manager import ClientChannelInfo, ProducerManager
from broker_agent.timing import Timing
from groundwork.shares import MACHINE, Sharer


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
        self.on_filter_servers_change: Callable[[], None] = lambda: None  # called without the lock

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context that changes tables under the lock."""
        with self.lock:
            before = self.filter_servers.addresses
            yield
            changed = self.filter_servers.addresses != before
        if changed:
            self.on_filter_servers_change()

    def heart_beat(self, request: pb.HeartbeatRequest, remote_addr: str, sharer: Sharer = MACHINE) -> list[str]:
        """Registers or renews a client in all groups of a checked heartbeat. Returns the consumer groups that changed.

        Raises CHANNEL_GONE or LIMIT_EXCEEDED. Nothing has changed then.
        """
        with self.step():
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
        with self.step():
            if request.channel_id and not self.channels.is_open(request.channel_id):
                return False  # the end of the channel has removed everything
            channel = self._channel(request.channel_id, request.client_id)
            if request.HasField("producer_group") or request.HasField("consumer_group"):
                produced = self.producers.unregister_producer(request.producer_group, channel)
                return self.consumers.unregister_consumer(request.consumer_group, channel) or produced
            left = self.producers.do_channel_close_event(channel) + self.consumers.do_channel_close_event(channel)
            return bool(left)

    def register_filter_server(self, request: pb.RegisterFilterServerRequest, remote_addr: str) -> None:
        """Registers or renews a filter server. Raises CHANNEL_GONE or LIMIT_EXCEEDED."""
        addr = request.filter_server_addr
        with self.step():
            channel = self._channel(request.channel_id, f"filter server {addr}", remote_addr)
            self.filter_servers.register_filter_server(channel, addr)

    def _channel(self, channel_id: str, client_id: str, remote_addr: str = "") -> ClientChannel:
        return self.channels.heard(channel_id) if channel_id else PlainClient(client_id, remote_addr)
