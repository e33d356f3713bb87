"""ClientService: the rules on what clients send, their calls, queries about them, and the listener."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote

from broker_agent_api.v1 import client_service_pb2 as pb
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from broker_agent.clients import limits
from broker_agent.clients.managers import ClientChannelInfo, ClientManagers, ConsumerGroupInfo, StreamChannel
from broker_agent.errors import Reason, checked
from broker_agent.listener import ANYONE, Callers, LoopListener
from broker_agent.registration import BrokerState
from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import FieldProblems, Refused, invalid_field, limit_exceeded
from namesrv_common.server.rpc_handlers import Context, methods_of
from namesrv_common.server.shares import sharer_at
from namesrv_common.topic_names import check_name, check_topic

SERVICE = pb.DESCRIPTOR.services_by_name["ClientService"]

# The rules on the fields of requests. A check of one field raises INVALID_FIELD.


def check_heartbeat(request: pb.HeartbeatRequest) -> None:
    """Checks all fields of a heartbeat. Raises INVALID_FIELD, which names every bad one, or LIMIT_EXCEEDED."""
    problems = FieldProblems()
    with problems:
        check_client_id(request.client_id)
    for field in ("language", "version"):
        with problems:
            _check_size(field, getattr(request, field), limits.MAX_DESCRIPTION_BYTES)
    for kind in ("producer", "consumer"):
        groups = getattr(request, f"{kind}_groups")
        if len(groups) > limits.MAX_GROUPS_PER_HEARTBEAT:
            raise limit_exceeded(f"{kind} groups of one heartbeat", len(groups), limits.MAX_GROUPS_PER_HEARTBEAT)
        for index, data in enumerate(groups):
            with problems:
                check_group(f"{kind}_groups[{index}].group_name", data.group_name)
    for index, consumer in enumerate(request.consumer_groups):
        with problems:
            _check_consumer(f"consumer_groups[{index}]", consumer)
    problems.raise_any()


def check_client_id(client_id: str) -> None:
    if not client_id:
        raise invalid_field("client_id", "is empty")
    _check_size("client_id", client_id, limits.MAX_CLIENT_ID_BYTES)
    if not client_id.isprintable():
        raise invalid_field("client_id", f"{client_id!r} has characters that cannot be printed")


def check_group(field: str, name: str) -> None:
    checked(field, check_name, name, limits.MAX_GROUP_NAME_LENGTH)


def _check_consumer(where: str, message: pb.ConsumerData) -> None:
    count = len(message.subscriptions)
    if count > limits.MAX_SUBSCRIPTIONS:
        raise limit_exceeded("subscriptions of one consumer group", count, limits.MAX_SUBSCRIPTIONS)
    _check_set(f"{where}.consume_type", message.consume_type, pb.ConsumeType)
    _check_set(f"{where}.message_model", message.message_model, pb.MessageModel)
    _check_set(f"{where}.consume_from_where", message.consume_from_where, pb.ConsumeFromWhere)
    for index, data in enumerate(message.subscriptions):
        field = f"{where}.subscriptions[{index}]"
        checked(f"{field}.topic", check_topic, data.topic)
        _check_size(f"{field}.expression", data.expression, limits.MAX_EXPRESSION_BYTES)
        _check_set(f"{field}.expression_type", data.expression_type or pb.EXPRESSION_TYPE_TAG, pb.ExpressionType)


def _check_set(field: str, number: int, values: EnumTypeWrapper) -> None:
    if number == 0 or number not in values.values():
        raise invalid_field(field, "is not set" if number == 0 else f"is {number}, which this version does not know")


def _check_size(field: str, text: str, most: int) -> None:
    if (size := len(text.encode())) > most:
        raise invalid_field(field, f"has {size} bytes, at most {most}")


class ClientQueries:
    """The List calls (RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor). Thread-safe, for the fast listener."""

    def __init__(self, managers: ClientManagers) -> None:
        self._managers = managers

    def ListConsumerIds(self, request: pb.ListConsumerIdsRequest, _context: object) -> pb.ListConsumerIdsResponse:
        with self._consumer_group(request.consumer_group):
            return pb.ListConsumerIdsResponse(client_ids=self._managers.consumers.client_ids(request.consumer_group))

    def ListConsumerConnections(
        self, request: pb.ListConsumerConnectionsRequest, _context: object
    ) -> pb.ListConsumerConnectionsResponse:
        with self._consumer_group(request.consumer_group) as info:
            return pb.ListConsumerConnectionsResponse(
                consume_type=info.consume_type,
                message_model=info.message_model,
                consume_from_where=info.consume_from_where,
                subscriptions=[data for _topic, data in sorted(info.subscriptions.items())],
                connections=self._connections(self._managers.consumers.members(request.consumer_group)),
            )

    def ListProducerConnections(
        self, request: pb.ListProducerConnectionsRequest, _context: object
    ) -> pb.ListProducerConnectionsResponse:
        check_group("producer_group", request.producer_group)
        with self._managers.lock:
            connections = self._connections(self._managers.producers.members(request.producer_group))
        if not connections:
            name = request.producer_group
            text = f"no client is in the producer group {name!r}"
            raise Refused(Reason.PRODUCER_GROUP_NOT_FOUND, text, producer_group=name)
        return pb.ListProducerConnectionsResponse(connections=connections)

    def ListConsumerFilters(
        self, request: pb.ListConsumerFiltersRequest, _context: object
    ) -> pb.ListConsumerFiltersResponse:
        check_group("consumer_group", request.consumer_group)
        with self._managers.lock:
            return pb.ListConsumerFiltersResponse(filters=self._managers.filters.by_group(request.consumer_group))

    @contextlib.contextmanager
    def _consumer_group(self, name: str) -> Iterator[ConsumerGroupInfo]:
        """A group, under the lock. Raises CONSUMER_GROUP_NOT_FOUND."""
        check_group("consumer_group", name)
        with self._managers.lock:
            if (info := self._managers.consumers.group(name)) is None:
                text = f"no client is in the consumer group {name!r}"
                raise Refused(Reason.CONSUMER_GROUP_NOT_FOUND, text, consumer_group=name)
            yield info

    def _connections(self, members: Iterable[ClientChannelInfo]) -> list[pb.ClientConnection]:
        wall_ahead = self._managers.timing.wall_clock() - self._managers.timing.clock()
        return [
            pb.ClientConnection(
                client_id=info.client_id,
                client_addr=info.remote_addr,
                language=info.language,
                version=info.version,
                has_channel=info.channel.is_active,
                last_heartbeat_at_millis=int((wall_ahead + info.last_update) * 1000),
            )
            for info in sorted(members, key=lambda info: (info.client_id, info.remote_addr))
        ]


class ClientServicer:
    """The calls of clients (RocketMQ: ClientManageProcessor). Runs in the event loop of ``ClientServer``."""

    def __init__(self, managers: ClientManagers, broker: Callable[[], BrokerState]) -> None:
        self._managers = managers
        self._broker = broker
        queries = ClientQueries(managers)
        for method in methods_of(SERVICE, queries):
            setattr(self, method.name, partial(_answer, getattr(queries, method.name)))

    async def OpenClientChannel(
        self, request: pb.OpenClientChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenClientChannelResponse]:
        with self._managers.lock:
            channel = self._managers.channels.open(_remote_addr(context), sharer_at(context.peer()))
        del request  # a channel lasts, and does not need its request
        try:
            async for message in self._messages(channel):
                yield message
        finally:
            self._managers.on_channel_close(channel)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        check_heartbeat(request)
        changed = self._managers.heart_beat(request, _remote_addr(context), sharer_at(context.peer()))
        return pb.HeartbeatResponse(changed_consumer_groups=changed)

    async def UnregisterClient(
        self, request: pb.UnregisterClientRequest, _context: Context
    ) -> pb.UnregisterClientResponse:
        check_client_id(request.client_id)
        for field in ("producer_group", "consumer_group"):
            if request.HasField(field):
                check_group(field, getattr(request, field))
        return pb.UnregisterClientResponse(removed=self._managers.unregister_client(request))

    async def RegisterFilterServer(
        self, request: pb.RegisterFilterServerRequest, context: Context
    ) -> pb.RegisterFilterServerResponse:
        checked("filter_server_addr", Endpoint.parse, request.filter_server_addr)
        self._managers.register_filter_server(request, _remote_addr(context))
        broker = self._broker()
        return pb.RegisterFilterServerResponse(broker_name=broker.broker_name, broker_id=broker.broker_id)

    async def _messages(self, channel: StreamChannel) -> AsyncIterator[pb.OpenClientChannelResponse]:
        """The messages to a channel's holder, to the end of the stream. Raises SLOW_READER."""
        idle_timeout_millis = int(limits.CLIENT_SILENCE_SECONDS * 1000)
        opened = pb.ClientChannelOpened(channel_id=channel.channel_id, idle_timeout_millis=idle_timeout_millis)
        yield pb.OpenClientChannelResponse(opened=opened)
        while True:
            await channel.pending.wait()
            for message in channel.take():
                yield message
                if message.HasField("closing"):
                    return
            pause = max(limits.NOTICE_PAUSE_SECONDS, len(self._managers.channels) / limits.NOTICES_PER_SECOND)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await channel.ending.wait()


async def _answer(call: Callable[[Any, object], Message], request: Message, context: object) -> Message:
    return call(request, context)


def _remote_addr(context: Context) -> str:
    """The caller's host:port, out of gRPC's ``ipv4:1.2.3.4:5`` or ``ipv6:%5B::1%5D:5``."""
    kind, _, address = context.peer().partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else context.peer()


class ClientServer(LoopListener):
    """Serves ClientService and its health, and removes silent clients. A channel costs no thread."""

    def __init__(
        self, listen: Endpoint, managers: ClientManagers, broker: Callable[[], BrokerState], callers: Callers = ANYONE
    ) -> None:
        """Takes the port; answers only once started. Raises StartError. The event loop calls ``broker``."""
        self._managers = managers
        super().__init__(
            "listen",
            listen,
            [(SERVICE, ClientServicer(managers, broker))],
            max_connections=limits.MAX_CONNECTIONS,
            max_pending_requests=limits.MAX_PENDING_REQUESTS,
            keepalive_seconds=limits.KEEPALIVE_SECONDS,
            most_health_calls=limits.MAX_HEALTH_CALLS,
            callers=callers,
        )
        self._health.set(SERVICE.full_name, health_pb2.HealthCheckResponse.SERVING)

    def _works(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._managers.scan_periodically(),)

    async def _stop(self) -> None:
        """Closes all channels with reason SHUTDOWN."""
        self._health.enter_shutdown()
        with self._managers.lock:
            self._managers.channels.close_all(pb.ClientChannelClosing.REASON_SHUTDOWN)
        await super()._stop()
