"""Every rule on what clients send: messages of the contract in, checked records out."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import limits
from broker_agent.clients.records import (
    ConsumeFromWhere,
    ConsumerAttributes,
    ConsumerData,
    ConsumeType,
    ExpressionType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from broker_agent.rpc_errors import InvalidField, LimitExceeded
from groundwork import topic_names
from groundwork.endpoints import Endpoint

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
    """Checks a heartbeat.

    Raises:
        InvalidField: A part is missing, breaks its rule, or is there twice.
        LimitExceeded: There are too many groups or subscriptions.
    """
    for kind, count in (("producer", len(request.producer_groups)), ("consumer", len(request.consumer_groups))):
        if count > limits.MAX_GROUPS_PER_HEARTBEAT:
            raise LimitExceeded(f"{kind} groups of one heartbeat", count, limits.MAX_GROUPS_PER_HEARTBEAT)
    producer_groups = [
        check_group(f"producer_groups[{index}].group_name", data.group_name)
        for index, data in enumerate(request.producer_groups)
    ]
    _check_unique(producer_groups, "producer_groups[{}].group_name")
    consumers = [_consumer(f"consumer_groups[{index}]", data) for index, data in enumerate(request.consumer_groups)]
    _check_unique([consumer.group for consumer in consumers], "consumer_groups[{}].group_name")
    return HeartbeatData(
        check_client_id(request.client_id),
        _check_length("language", request.language, limits.MAX_DESCRIPTION_LENGTH),
        _check_length("version", request.version, limits.MAX_DESCRIPTION_LENGTH),
        tuple(producer_groups),
        tuple(consumers),
    )


def check_client_id(client_id: str) -> str:
    """Checks the id of a client and returns it. Raises InvalidField."""
    if not client_id:
        raise InvalidField("client_id", "is empty")
    _check_length("client_id", client_id, limits.MAX_CLIENT_ID_LENGTH)
    if not client_id.isprintable():
        raise InvalidField("client_id", f"{client_id!r} has characters that cannot be printed")
    return client_id


def check_group(field: str, name: str) -> str:
    """Checks the name of a group and returns it. Raises InvalidField."""
    return _by_rule(field, lambda: topic_names.check_name(name, limits.MAX_GROUP_NAME_LENGTH))


def check_holder(holder: str) -> str:
    """Checks what the holder of a channel calls itself and returns it. Raises InvalidField."""
    return _check_length("holder", holder, limits.MAX_HOLDER_LENGTH)


def check_address(field: str, address: str) -> str:
    """Checks that a text is host:port and returns it. Raises InvalidField."""
    return _by_rule(field, lambda: str(Endpoint.parse(address)))


def page_size(value: int) -> int:
    """The page size in force. Raises InvalidField."""
    if value < 0:
        raise InvalidField("page_size", f"is {value}, must not be negative")
    return min(value, limits.MAX_PAGE_SIZE) or limits.MAX_PAGE_SIZE


def page_token(client_id: str, remote_addr: str) -> str:
    """A token that says after which connection to go on, so that it stays valid while members come and go."""
    return base64.urlsafe_b64encode(f"{client_id}\n{remote_addr}".encode()).decode()


def after_page_token(token: str) -> tuple[str, str]:
    """Client id and address to go on after; two empty texts for the first page. Raises InvalidField."""
    try:
        client_id, _, remote_addr = base64.b64decode(token, altchars=b"-_", validate=True).decode().partition("\n")
    except (binascii.Error, ValueError):
        raise InvalidField("page_token", "is not a next_page_token of this call") from None
    return client_id, remote_addr


def _consumer(where: str, message: pb.ConsumerData) -> ConsumerData:
    count = len(message.subscriptions)
    if count > limits.MAX_SUBSCRIPTIONS:
        raise LimitExceeded("subscriptions of one consumer group", count, limits.MAX_SUBSCRIPTIONS)
    group = check_group(f"{where}.group_name", message.group_name)
    attributes = ConsumerAttributes(
        _one_of(f"{where}.consume_type", message.consume_type, CONSUME_TYPES),
        _one_of(f"{where}.message_model", message.message_model, MESSAGE_MODELS),
        _one_of(f"{where}.consume_from_where", message.consume_from_where, CONSUME_FROM_WHERES),
    )
    subscriptions = tuple(
        _subscription(f"{where}.subscriptions[{index}]", subscription)
        for index, subscription in enumerate(message.subscriptions)
    )
    _check_unique([subscription.topic for subscription in subscriptions], f"{where}.subscriptions[{{}}].topic")
    return ConsumerData(group, attributes, subscriptions)


def _subscription(where: str, message: pb.SubscriptionData) -> SubscriptionData:
    return SubscriptionData(
        _by_rule(f"{where}.topic", lambda: topic_names.check_topic(message.topic)),
        _check_length(f"{where}.expression", message.expression, limits.MAX_EXPRESSION_LENGTH),
        _one_of(f"{where}.expression_type", message.expression_type, EXPRESSION_TYPES),
        message.sub_version,
    )


def _one_of(field: str, number: NumberT, values: Mapping[NumberT, ValueT]) -> ValueT:
    if number in values:
        return values[number]
    raise InvalidField(field, "is not set" if number == 0 else f"is {number}, which this version does not know")


def _check_length(field: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise InvalidField(field, f"has {len(text)} characters, at most {longest}")
    return text


def _check_unique(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise InvalidField(where.format(index), f"{name!r} is there twice")
        seen.add(name)


def _by_rule(field: str, rule: Callable[[], str]) -> str:
    try:
        return rule()
    except ValueError as error:
        raise InvalidField(field, str(error)) from None
