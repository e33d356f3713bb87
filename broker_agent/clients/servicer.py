"""The calls of clients: ClientService of the wire contract."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote

from broker_agent_api.v1 import client_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.clients import limits, request_validation
from broker_agent.clients.channels import ClientChannels, StreamChannel
from broker_agent.clients.managers import ClientManagers
from broker_agent.clients.queries import ClientQueries
from broker_agent.rpc_errors import SlowReader
from groundwork.rpc_handlers import Context


class ClientServicer:
    """Checks requests, asks the managers, makes answers. Runs on one event loop and never waits but for notices."""

    def __init__(self, managers: ClientManagers, identity: Callable[[], route_data_pb2.BrokerIdentity]) -> None:
        """Serves the managers.

        Args:
            managers: The state.
            identity: The broker that the agent is beside, as it is now.
        """
        self._managers = managers
        self._tables = managers.tables
        self._identity = identity
        self._queries = ClientQueries(managers)

    async def OpenClientChannel(  # noqa: N802 - the contract's names, documented there
        self, request: pb.OpenClientChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenClientChannelResponse]:
        """What RocketMQ's TCP connection and ClientHousekeepingService's events were."""
        holder = request_validation.check_holder(request.holder)
        loop, pending = asyncio.get_running_loop(), asyncio.Event()
        channel = self._tables.channels.open(holder, _remote_addr(context), lambda: _set_from_any_thread(loop, pending))
        housekeeping = self._managers.housekeeping
        try:
            async for message in _messages(channel, pending, self._tables.channels):
                yield message
        except Exception:
            housekeeping.on_channel_exception(channel)
            raise
        finally:
            housekeeping.on_channel_close(channel)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:  # noqa: N802
        """RocketMQ: ClientManageProcessor.heartBeat."""
        changed = self._managers.processor.heart_beat(
            request.channel_id if request.HasField("channel_id") else None,
            _remote_addr(context),
            self._managers.timing.clock(),
            request_validation.heartbeat(request),
        )
        return pb.HeartbeatResponse(changed_consumer_groups=changed)

    async def UnregisterClient(  # noqa: N802
        self, request: pb.UnregisterClientRequest, _context: Context
    ) -> pb.UnregisterClientResponse:
        """RocketMQ: ClientManageProcessor.unregisterClient."""
        groups: list[str | None] = [
            request_validation.check_group(field, getattr(request, field)) if request.HasField(field) else None
            for field in ("producer_group", "consumer_group")
        ]
        removed = self._managers.processor.unregister_client(
            request.channel_id if request.HasField("channel_id") else None,
            request_validation.check_client_id(request.client_id),
            *groups,
        )
        return pb.UnregisterClientResponse(removed=removed)

    async def ListConsumerIds(  # noqa: N802
        self, request: pb.ListConsumerIdsRequest, _context: Context
    ) -> pb.ListConsumerIdsResponse:
        """See ClientQueries."""
        return self._queries.list_consumer_ids(request)

    async def ListConsumerConnections(  # noqa: N802
        self, request: pb.ListConsumerConnectionsRequest, _context: Context
    ) -> pb.ListConsumerConnectionsResponse:
        """See ClientQueries."""
        return self._queries.list_consumer_connections(request)

    async def ListProducerConnections(  # noqa: N802
        self, request: pb.ListProducerConnectionsRequest, _context: Context
    ) -> pb.ListProducerConnectionsResponse:
        """See ClientQueries."""
        return self._queries.list_producer_connections(request)

    async def ListConsumerFilters(  # noqa: N802
        self, request: pb.ListConsumerFiltersRequest, _context: Context
    ) -> pb.ListConsumerFiltersResponse:
        """See ClientQueries."""
        return self._queries.list_consumer_filters(request)

    async def RegisterFilterServer(  # noqa: N802
        self, request: pb.RegisterFilterServerRequest, context: Context
    ) -> pb.RegisterFilterServerResponse:
        """RocketMQ 4: AdminBrokerProcessor.registerFilterServer."""
        addr = request_validation.check_address("filter_server_addr", request.filter_server_addr)
        self._managers.processor.register_filter_server(
            request.channel_id if request.HasField("channel_id") else None, _remote_addr(context), addr
        )
        identity = self._identity()
        return pb.RegisterFilterServerResponse(broker_name=identity.broker_name, broker_id=identity.broker_id)


async def _messages(
    channel: StreamChannel, pending: asyncio.Event, channels: ClientChannels
) -> AsyncIterator[pb.OpenClientChannelResponse]:
    """What a channel's holder is told, to the end of the stream. Raises SlowReader."""
    idle_timeout_millis = int(limits.CLIENT_SILENCE_SECONDS * 1000)
    opened = pb.ClientChannelOpened(channel_id=channel.channel_id, idle_timeout_millis=idle_timeout_millis)
    yield pb.OpenClientChannelResponse(opened=opened)
    while True:
        await pending.wait()
        pending.clear()
        if channel.overflown:
            raise SlowReader
        for message in channel.take():
            yield message
            if message.HasField("closing"):
                return
        await _pause(channel, pending, max(limits.NOTICE_PAUSE_SECONDS, len(channels) / limits.NOTICES_PER_SECOND))


async def _pause(channel: StreamChannel, pending: asyncio.Event, seconds: float) -> None:
    """Lets notices gather, unless the channel is about to end."""
    gathered = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while channel.is_active and not channel.overflown:
                await pending.wait()
                pending.clear()
                gathered = True
    if gathered:
        pending.set()


def _set_from_any_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


def _remote_addr(context: Context) -> str:
    """The caller's host:port, out of gRPC's ``ipv4:1.2.3.4:5`` or ``ipv6:%5B::1%5D:5``."""
    kind, _, address = context.peer().partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else context.peer()
