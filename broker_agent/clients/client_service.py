"""ClientService: the calls of clients, the rules on their fields, and queries about clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

from broker_agent_api.v1 import client_service_pb2 as pb
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2

from broker_agent.clients import limits
from broker_agent.clients.channels import ClientChannels, StreamChannel
from broker_agent.clients.clients import ClientManagers
from broker_agent.clients.groups import ConsumerGroup
from broker_agent.clients.records import (
    ClientChannelInfo,
    ConsumeFromWhere,
    ConsumerAttributes,
    ConsumerData,
    ConsumeType,
    ExpressionType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from broker_agent.errors import (
    FieldProblems,
    consumer_group_not_found,
    invalid_field,
    limit_exceeded,
    producer_group_not_found,
    slow_reader,
)
from groundwork import topic_names
from groundwork.endpoints import Endpoint
from groundwork.rpc_handlers import Context
from groundwork.shares import sharer_at

# Every rule on what clients send: messages of the contract in, checked records out.

CONSUME_TYPES: Mapping[pb.ConsumeType, ConsumeType] = {
    pb.CONSUME_TYPE_ACTIVELY: ConsumeType.ACTIVELY,
    pb.CONSUME_TYPE_PASSIVELY: ConsumeType.PASSIVELY,
    pb.CONSUME_TYPE_POP: ConsumeType.POP,
}
MESSAGE_MODELS: Mapping[pb.MessageModel, MessageModel] = {
    pb.MESSAGE_MODEL_BROADCASTING: MessageModel.BROADCASTING,
    pb.MESSAGE_MODEL_CLUSTERING: MessageModel.CLUSTERING,
}
CONSUME_FROM_WHERES: Mapping[pb.ConsumeFromWhere, ConsumeFromWhere] = {
    pb.CONSUME_FROM_WHERE_LAST_OFFSET: ConsumeFromWhere.LAST_OFFSET,
    pb.CONSUME_FROM_WHERE_FIRST_OFFSET: ConsumeFromWhere.FIRST_OFFSET,
    pb.CONSUME_FROM_WHERE_TIMESTAMP: ConsumeFromWhere.TIMESTAMP,
}
EXPRESSION_TYPES: Mapping[pb.ExpressionType, ExpressionType] = {
    pb.EXPRESSION_TYPE_UNSPECIFIED: ExpressionType.TAG,
    pb.EXPRESSION_TYPE_TAG: ExpressionType.TAG,
    pb.EXPRESSION_TYPE_SQL92: ExpressionType.SQL92,
}

NumberT = TypeVar("NumberT", bound=int)
ValueT = TypeVar("ValueT")


def heartbeat(request: pb.HeartbeatRequest) -> HeartbeatData:
    """Checks a heartbeat. Raises INVALID_FIELD or LIMIT_EXCEEDED."""
    for kind, count in (("producer", len(request.producer_groups)), ("consumer", len(request.consumer_groups))):
        if count > limits.MAX_GROUPS_PER_HEARTBEAT:
            raise limit_exceeded(f"{kind} groups of one heartbeat", count, limits.MAX_GROUPS_PER_HEARTBEAT)
    problems = FieldProblems()
    producer_groups, consumers = [], []
    for index, producer in enumerate(request.producer_groups):
        with problems:
            producer_groups.append(check_group(f"producer_groups[{index}].group_name", producer.group_name))
    with problems:
        _check_unique([data.group_name for data in request.producer_groups], "producer_groups[{}].group_name")
    for index, consumer in enumerate(request.consumer_groups):
        with problems:
            consumers.append(_consumer(f"consumer_groups[{index}]", consumer))
    with problems:
        _check_unique([data.group_name for data in request.consumer_groups], "consumer_groups[{}].group_name")
    with problems:
        check_client_id(request.client_id)
    with problems:
        _check_bytes("language", request.language, limits.MAX_DESCRIPTION_BYTES)
    with problems:
        _check_bytes("version", request.version, limits.MAX_DESCRIPTION_BYTES)
    problems.raise_any()
    return HeartbeatData(
        request.client_id,
        request.language,
        request.version,
        tuple(producer_groups),
        tuple(consumers),
    )


def check_client_id(client_id: str) -> str:
    """Checks the id of a client and returns it. Raises INVALID_FIELD."""
    if not client_id:
        raise invalid_field("client_id", "is empty")
    _check_bytes("client_id", client_id, limits.MAX_CLIENT_ID_BYTES)
    if not client_id.isprintable():
        raise invalid_field("client_id", f"{client_id!r} has characters that cannot be printed")
    return client_id


def check_group(field: str, name: str) -> str:
    """Checks the name of a group and returns it. Raises INVALID_FIELD."""
    return _by_rule(field, lambda: topic_names.check_name(name, limits.MAX_GROUP_NAME_LENGTH))


def check_holder(holder: str) -> str:
    """Checks what the holder of a channel calls itself and returns it. Raises INVALID_FIELD."""
    return _check_length("holder", holder, limits.MAX_HOLDER_LENGTH)


def check_address(field: str, address: str) -> str:
    """Checks that a text is host:port and returns it. Raises INVALID_FIELD."""
    return _by_rule(field, lambda: str(Endpoint.parse(address)))


def _consumer(where: str, message: pb.ConsumerData) -> ConsumerData:
    count = len(message.subscriptions)
    if count > limits.MAX_SUBSCRIPTIONS:
        raise limit_exceeded("subscriptions of one consumer group", count, limits.MAX_SUBSCRIPTIONS)
    group = check_group(f"{where}.group_name", message.group_name)
    attributes = ConsumerAttributes(
        _one_of(f"{where}.consume_type", message.consume_type, CONSUME_TYPES),
        _one_of(f"{where}.message_model", message.message_model, MESSAGE_MODELS),
        _one_of(f"{where}.consume_from_where", message.consume_from_where, CONSUME_FROM_WHERES),
    )
    subscriptions = tuple(
        _checked_subscription(f"{where}.subscriptions[{index}]", subscription)
        for index, subscription in enumerate(message.subscriptions)
    )
    _check_unique([subscription.topic for subscription in subscriptions], f"{where}.subscriptions[{{}}].topic")
    return ConsumerData(group, attributes, subscriptions)


def _checked_subscription(where: str, message: pb.SubscriptionData) -> SubscriptionData:
    return SubscriptionData(
        _by_rule(f"{where}.topic", lambda: topic_names.check_topic(message.topic)),
        _check_length(f"{where}.expression", message.expression, limits.MAX_EXPRESSION_LENGTH),
        _one_of(f"{where}.expression_type", message.expression_type, EXPRESSION_TYPES),
        message.sub_version,
    )


def _one_of(field: str, number: NumberT, values: Mapping[NumberT, ValueT]) -> ValueT:
    if number in values:
        return values[number]
    raise invalid_field(field, "is not set" if number == 0 else f"is {number}, which this version does not know")


def _check_length(field: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise invalid_field(field, f"has {len(text)} characters, at most {longest}")
    return text


def _check_bytes(field: str, text: str, most: int) -> str:
    if (size := len(text.encode())) > most:
        raise invalid_field(field, f"has {size} bytes, at most {most}")
    return text


def _check_unique(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise invalid_field(where.format(index), f"{name!r} is there twice")
        seen.add(name)


def _by_rule(field: str, rule: Callable[[], str]) -> str:
    try:
        return rule()
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


# Queries about clients, by themselves and by operators, on either listener.

_CONSUME_TYPES = {value: number for number, value in CONSUME_TYPES.items()}
_MESSAGE_MODELS = {value: number for number, value in MESSAGE_MODELS.items()}
_CONSUME_FROM_WHERES = {value: number for number, value in CONSUME_FROM_WHERES.items()}
_EXPRESSION_TYPES = {
    ExpressionType.TAG: pb.EXPRESSION_TYPE_TAG,
    ExpressionType.SQL92: pb.EXPRESSION_TYPE_SQL92,
}


class ClientQueries:
    """Answers the List calls of ClientService. Thread-safe; raises Refused."""

    def __init__(self, managers: ClientManagers) -> None:
        self._timing = managers.timing
        self._tables = managers.tables

    def list_consumer_ids(self, request: pb.ListConsumerIdsRequest) -> pb.ListConsumerIdsResponse:
        """RocketMQ: ConsumerManageProcessor.getConsumerListByGroup."""
        return pb.ListConsumerIdsResponse(client_ids=self._consumer_group(request.consumer_group).client_ids)

    def list_consumer_connections(
        self, request: pb.ListConsumerConnectionsRequest
    ) -> pb.ListConsumerConnectionsResponse:
        """RocketMQ: AdminBrokerProcessor.getConsumerConnectionList."""
        group = self._consumer_group(request.consumer_group)
        return pb.ListConsumerConnectionsResponse(
            consume_type=_CONSUME_TYPES[group.attributes.consume_type],
            message_model=_MESSAGE_MODELS[group.attributes.message_model],
            consume_from_where=_CONSUME_FROM_WHERES[group.attributes.consume_from_where],
            subscriptions=map(_subscription, group.subscriptions),
            connections=self._connections(group.members),
        )

    def list_producer_connections(
        self, request: pb.ListProducerConnectionsRequest
    ) -> pb.ListProducerConnectionsResponse:
        """RocketMQ: AdminBrokerProcessor.getProducerConnectionList."""
        name = check_group("producer_group", request.producer_group)
        members = self._tables.producers.members(name)
        if not members:
            raise producer_group_not_found(name)
        return pb.ListProducerConnectionsResponse(connections=self._connections(members))

    def list_consumer_filters(self, request: pb.ListConsumerFiltersRequest) -> pb.ListConsumerFiltersResponse:
        """What RocketMQ keeps in consumerFilter.json."""
        name = check_group("consumer_group", request.consumer_group)
        filters = [
            pb.ConsumerFilterData(
                topic=data.topic,
                expression=data.expression,
                expression_type=_EXPRESSION_TYPES[data.expression_type],
                client_version=data.client_version,
                born_time_millis=data.born_time_millis,
                dead_time_millis=data.dead_time_millis,
            )
            for data in self._tables.filters.by_group(name)
        ]
        return pb.ListConsumerFiltersResponse(filters=filters)

    def _consumer_group(self, name: str) -> ConsumerGroup:
        group = self._tables.consumers.group(check_group("consumer_group", name))
        if group is None:
            raise consumer_group_not_found(name)
        return group

    def _connections(self, members: Iterable[ClientChannelInfo]) -> list[pb.ClientConnection]:
        return [self._connection(info) for info in sorted(members, key=lambda info: (info.client_id, info.remote_addr))]

    def _connection(self, info: ClientChannelInfo) -> pb.ClientConnection:
        timing = self._timing
        last_heartbeat_at = timing.wall_clock() - (timing.clock() - info.last_update)
        return pb.ClientConnection(
            client_id=info.client_id,
            client_addr=info.remote_addr,
            language=info.language,
            version=info.version,
            has_channel=info.channel.is_active,
            last_heartbeat_at_millis=int(last_heartbeat_at * 1000),
        )


def _subscription(data: SubscriptionData) -> pb.SubscriptionData:
    return pb.SubscriptionData(
        topic=data.topic,
        expression=data.expression,
        expression_type=_EXPRESSION_TYPES[data.expression_type],
        sub_version=data.sub_version,
    )


class OperatorQueries:
    """The List calls, and no others, for the fast listener: operators are answered while clients flood theirs."""

    def __init__(self, managers: ClientManagers) -> None:
        queries = ClientQueries(managers)
        calls: dict[str, Callable[[Any], Message]] = {
            "ListConsumerIds": queries.list_consumer_ids,
            "ListConsumerConnections": queries.list_consumer_connections,
            "ListProducerConnections": queries.list_producer_connections,
            "ListConsumerFilters": queries.list_consumer_filters,
        }
        for name, call in calls.items():
            setattr(self, name, _without_context(call))


def _without_context(call: Callable[[Any], Message]) -> Callable[[Any, object], Message]:
    return lambda request, _context: call(request)


# The calls of clients: ClientService of the wire contract.


class ClientServicer:
    """Checks requests, asks the managers, makes answers. Runs on one event loop and never waits but for notices."""

    def __init__(self, managers: ClientManagers, identity: Callable[[], route_data_pb2.BrokerIdentity]) -> None:
        """Serves the managers. ``identity`` is the broker that the agent is beside, as it is now."""
        self._managers = managers
        self._tables = managers.tables
        self._identity = identity
        self._queries = ClientQueries(managers)

    async def OpenClientChannel(  # noqa: N802 - the contract's names, documented there
        self, request: pb.OpenClientChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenClientChannelResponse]:
        """What RocketMQ's TCP connection and ClientHousekeepingService's events were."""
        holder = check_holder(request.holder)
        del request  # a channel lasts, and does not need its request
        loop, pending = asyncio.get_running_loop(), asyncio.Event()
        channel = self._tables.channels.open(
            holder, _remote_addr(context), lambda: _set_from_any_thread(loop, pending), sharer_at(context.peer())
        )
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
            heartbeat(request),
            sharer_at(context.peer()),
        )
        return pb.HeartbeatResponse(changed_consumer_groups=changed)

    async def UnregisterClient(  # noqa: N802
        self, request: pb.UnregisterClientRequest, _context: Context
    ) -> pb.UnregisterClientResponse:
        """RocketMQ: ClientManageProcessor.unregisterClient."""
        groups: list[str | None] = [
            check_group(field, getattr(request, field)) if request.HasField(field) else None
            for field in ("producer_group", "consumer_group")
        ]
        removed = self._managers.processor.unregister_client(
            request.channel_id if request.HasField("channel_id") else None,
            check_client_id(request.client_id),
            *groups,
        )
        return pb.UnregisterClientResponse(removed=removed)

    async def ListConsumerIds(  # noqa: N802
        self, request: pb.ListConsumerIdsRequest, _context: Context
    ) -> pb.ListConsumerIdsResponse:
        return self._queries.list_consumer_ids(request)

    async def ListConsumerConnections(  # noqa: N802
        self, request: pb.ListConsumerConnectionsRequest, _context: Context
    ) -> pb.ListConsumerConnectionsResponse:
        return self._queries.list_consumer_connections(request)

    async def ListProducerConnections(  # noqa: N802
        self, request: pb.ListProducerConnectionsRequest, _context: Context
    ) -> pb.ListProducerConnectionsResponse:
        return self._queries.list_producer_connections(request)

    async def ListConsumerFilters(  # noqa: N802
        self, request: pb.ListConsumerFiltersRequest, _context: Context
    ) -> pb.ListConsumerFiltersResponse:
        return self._queries.list_consumer_filters(request)

    async def RegisterFilterServer(  # noqa: N802
        self, request: pb.RegisterFilterServerRequest, context: Context
    ) -> pb.RegisterFilterServerResponse:
        """RocketMQ 4: AdminBrokerProcessor.registerFilterServer."""
        addr = check_address("filter_server_addr", request.filter_server_addr)
        self._managers.processor.register_filter_server(
            request.channel_id if request.HasField("channel_id") else None, _remote_addr(context), addr
        )
        identity = self._identity()
        return pb.RegisterFilterServerResponse(broker_name=identity.broker_name, broker_id=identity.broker_id)


async def _messages(
    channel: StreamChannel, pending: asyncio.Event, channels: ClientChannels
) -> AsyncIterator[pb.OpenClientChannelResponse]:
    """What a channel's holder is told, to the end of the stream. Raises SLOW_READER."""
    idle_timeout_millis = int(limits.CLIENT_SILENCE_SECONDS * 1000)
    opened = pb.ClientChannelOpened(channel_id=channel.channel_id, idle_timeout_millis=idle_timeout_millis)
    yield pb.OpenClientChannelResponse(opened=opened)
    while True:
        await pending.wait()
        pending.clear()
        if channel.overflown:
            raise slow_reader()
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
