"""Calls of clients on records that have been checked (RocketMQ: ClientManageProcessor)."""

from __future__ import annotations

from broker_agent.clients.channels import PlainClient
from broker_agent.clients.records import ClientChannel, ClientChannelInfo, HeartbeatData
from broker_agent.clients.tables import ClientTables
from broker_agent.rpc_errors import ChannelGone


class ClientManageProcessor:
    """Registers and unregisters clients, each call as a whole or not at all. Thread-safe."""

    def __init__(self, tables: ClientTables) -> None:
        self._tables = tables

    def heart_beat(self, channel_id: str | None, remote_addr: str, now: float, data: HeartbeatData) -> list[str]:
        """Registers or renews a client in all groups of its heartbeat.

        Args:
            channel_id: The client's channel; None if it holds none.
            remote_addr: Address that it calls from.
            now: Monotonic seconds.
            data: The heartbeat.

        Returns:
            The consumer groups that it changed.

        Raises:
            ChannelGone: The channel is not open.
            LimitExceeded: There is no room for it. Nothing has changed.
        """
        with self._tables.lock:  # the end of the channel waits, and then finds all that is registered here
            channel = self._channel(channel_id, data.client_id, remote_addr)
            self._tables.producers.check_room(channel, data.producer_groups)
            self._tables.consumers.check_room(channel, data.consumers)
            info = ClientChannelInfo(channel, data.client_id, data.language, data.version, now, remote_addr)
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

        A channel that has ended is no error: its end has removed everything.
        """
        with self._tables.lock:
            try:
                channel = self._channel(channel_id, client_id, "")
            except ChannelGone:
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
            ChannelGone: The channel is not open.
            LimitExceeded: There would be too many.
        """
        channel = self._channel(channel_id, f"filter server {addr}", remote_addr)
        # Not under the lock, as the listeners of filter servers must be free to take locks of their own.
        self._tables.filter_servers.register_filter_server(channel, addr)
        if channel_id is not None and self._tables.channels.find(channel_id) is None:
            self._tables.remove_everywhere(channel)  # its end came in between and found nothing
            raise ChannelGone

    def _channel(self, channel_id: str | None, client_id: str, remote_addr: str) -> ClientChannel:
        return PlainClient(client_id, remote_addr) if channel_id is None else self._tables.channels.heard(channel_id)
