"""Queries about clients, by themselves and by operators, on either listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker_agent_api.v1 import client_service_pb2 as pb
from google.protobuf.message import Message

from broker_agent.clients import request_validation
from broker_agent.clients.groups.consumer_manager import ConsumerGroup
from broker_agent.clients.managers import ClientManagers
from broker_agent.clients.records import ClientChannelInfo, ExpressionType, SubscriptionData
from broker_agent.rpc_errors import ConsumerGroupNotFound, ProducerGroupNotFound

_CONSUME_TYPES = {value: number for number, value in request_validation.CONSUME_TYPES.items()}
_MESSAGE_MODELS = {value: number for number, value in request_validation.MESSAGE_MODELS.items()}
_CONSUME_FROM_WHERES = {value: number for number, value in request_validation.CONSUME_FROM_WHERES.items()}
_EXPRESSION_TYPES = {
    ExpressionType.TAG: pb.EXPRESSION_TYPE_TAG,
    ExpressionType.SQL92: pb.EXPRESSION_TYPE_SQL92,
}


class ClientQueries:
    """Answers the List calls of ClientService. Thread-safe; raises CallRefused."""

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
        connections, next_page_token = self._page(group.members, request.page_size, request.page_token)
        return pb.ListConsumerConnectionsResponse(
            consume_type=_CONSUME_TYPES[group.attributes.consume_type],
            message_model=_MESSAGE_MODELS[group.attributes.message_model],
            consume_from_where=_CONSUME_FROM_WHERES[group.attributes.consume_from_where],
            subscriptions=[] if request.page_token else map(_subscription, group.subscriptions),
            connections=connections,
            next_page_token=next_page_token,
        )

    def list_producer_connections(
        self, request: pb.ListProducerConnectionsRequest
    ) -> pb.ListProducerConnectionsResponse:
        """RocketMQ: AdminBrokerProcessor.getProducerConnectionList."""
        name = request_validation.check_group("producer_group", request.producer_group)
        members = self._tables.producers.members(name)
        if not members:
            raise ProducerGroupNotFound(name)
        connections, next_page_token = self._page(members, request.page_size, request.page_token)
        return pb.ListProducerConnectionsResponse(connections=connections, next_page_token=next_page_token)

    def list_consumer_filters(self, request: pb.ListConsumerFiltersRequest) -> pb.ListConsumerFiltersResponse:
        """What RocketMQ keeps in consumerFilter.json."""
        name = request_validation.check_group("consumer_group", request.consumer_group)
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
        group = self._tables.consumers.group(request_validation.check_group("consumer_group", name))
        if group is None:
            raise ConsumerGroupNotFound(name)
        return group

    def _page(
        self, members: Iterable[ClientChannelInfo], page_size: int, page_token: str
    ) -> tuple[list[pb.ClientConnection], str]:
        size, after = request_validation.page_size(page_size), request_validation.after_page_token(page_token)
        rest = sorted((info for info in members if _place(info) > after), key=_place)
        # Members of one place stay together, or those beyond the end of the page would be on none.
        while size < len(rest) and _place(rest[size]) == _place(rest[size - 1]):
            size += 1
        connections = [self._connection(info) for info in rest[:size]]
        return connections, request_validation.page_token(*_place(rest[size - 1])) if len(rest) > size else ""

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


def _place(info: ClientChannelInfo) -> tuple[str, str]:
    """Where a member comes in a list."""
    return info.client_id, info.remote_addr


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
