"""Requests of RegistrationService to records: every rule on input, with an error that names field and limit."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from namesrv_api.v1 import registration_service_pb2, route_data_pb2

from groundwork.topic_rules import MAX_PERM, MAX_QUEUE_NUMS
from namesrv.config import limits
from namesrv.core.errors import Crc32NotMatch, InvalidField, LimitExceeded
from namesrv.core.records.rows import BrokerKey, DataVersion, QueueNumbers, RemovalReason, TopicConfig
from namesrv.core.slices import Sliced
from namesrv.server.services import field_rules

CRC32_SLICE = 500
"""Topics that a checksum is taken of before giving way: about a millisecond."""


class BrokerIdentity(NamedTuple):
    """Which broker a request is about."""

    broker: BrokerKey
    broker_id: int
    broker_addr: str


def broker_identity(message: route_data_pb2.BrokerIdentity) -> BrokerIdentity:
    """Checks a BrokerIdentity.

    Raises:
        InvalidField: A part is missing or breaks its rule.
    """
    field_rules.check_name("broker.cluster_name", message.cluster_name)
    field_rules.check_name("broker.broker_name", message.broker_name)
    if not message.HasField("broker_id"):
        raise InvalidField("broker.broker_id", "is missing; 0 is the master, a slave has a higher id")
    if message.broker_id < 0:
        raise InvalidField("broker.broker_id", f"is {message.broker_id}, must not be negative")
    field_rules.check_address("broker.broker_addr", message.broker_addr)
    return BrokerIdentity(BrokerKey(message.cluster_name, message.broker_name), message.broker_id, message.broker_addr)


def data_version(field: str, message: route_data_pb2.DataVersion) -> DataVersion:
    """Checks a DataVersion.

    Raises:
        InvalidField: Timestamp or counter is missing or negative.
    """
    for part in ("timestamp_millis", "counter"):
        if not message.HasField(part):
            raise InvalidField(f"{field}.{part}", "is missing; a DataVersion needs timestamp_millis and counter")
        if getattr(message, part) < 0:
            raise InvalidField(f"{field}.{part}", f"is {getattr(message, part)}, must not be negative")
    return DataVersion(message.timestamp_millis, message.counter, message.state_version)


def topic_configs(
    messages: Iterable[route_data_pb2.TopicConfig], known_topics: Container[str]
) -> Iterator[TopicConfig]:
    """Checks topic configurations one by one, as they are consumed.

    Args:
        messages: The configurations.
        known_topics: Names that have been checked before: the names in the topic table.

    Raises:
        InvalidField: One breaks a rule, or a topic is there twice.
        LimitExceeded: There are too many.
    """
    seen: set[str] = set()
    for index, message in enumerate(messages):
        topic = message.topic_name
        if topic not in known_topics:
            field_rules.check_topic(f"topic_configs[{index}].topic_name", topic)
        if topic in seen:
            raise InvalidField(f"topic_configs[{index}].topic_name", f"{topic!r} is there twice")
        seen.add(topic)
        if index >= limits.MAX_TOPICS_PER_REGISTRATION:
            raise LimitExceeded("topics of one registration", index + 1, limits.MAX_TOPICS_PER_REGISTRATION)
        read, write, perm = message.read_queue_nums, message.write_queue_nums, message.perm
        flag = message.topic_sys_flag
        in_range = 0 <= read <= MAX_QUEUE_NUMS and 0 <= write <= MAX_QUEUE_NUMS
        # Zero is rare and may mean absent, so presence is only looked at then.
        all_set = (read and write and perm) or _has_numbers(message)
        if not (in_range and 0 <= perm <= MAX_PERM and flag >= 0 and all_set):
            _check_queue_numbers(f"topic_configs[{index}]", f"the topic {topic!r}", message)
        yield topic, (read, write, perm, flag)


def check_topic_count(request: registration_service_pb2.RegisterBrokerRequest) -> None:
    """Checks the number of topics before the request waits for its turn: 4 MiB of empty ones take 80 MiB.

    Raises:
        LimitExceeded: There are too many.
    """
    count = len(request.topic_configs)
    if count > limits.MAX_TOPICS_PER_REGISTRATION:
        raise LimitExceeded("topics of one registration", count, limits.MAX_TOPICS_PER_REGISTRATION)


def check_body_crc32(request: registration_service_pb2.RegisterBrokerRequest) -> Sliced[None]:
    """Checks in steps that the topic configurations are those that body_crc32 was taken of; 0 or absent checks nothing.

    Raises:
        Crc32NotMatch: They are not.
    """
    if not request.body_crc32:
        return
    actual = 0
    for count, config in enumerate(request.topic_configs, 1):
        numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm} {config.topic_sys_flag}"
        actual = zlib.crc32(f"{config.topic_name} {numbers}\n".encode(), actual)
        if count % CRC32_SLICE == 0:
            yield
    if actual != request.body_crc32:
        raise Crc32NotMatch(request.body_crc32, actual)


def filter_servers(request: registration_service_pb2.RegisterBrokerRequest) -> tuple[str, ...] | None:
    """The filter servers of a registration; None if they are to stay as they are.

    Raises:
        InvalidField: One is no address.
        LimitExceeded: There are too many.
    """
    if not request.HasField("filter_servers"):
        return None
    addresses = tuple(request.filter_servers.filter_servers)
    if len(addresses) > limits.MAX_FILTER_SERVERS:
        raise LimitExceeded("filter servers", len(addresses), limits.MAX_FILTER_SERVERS)
    for index, address in enumerate(addresses):
        field_rules.check_address(f"filter_servers.filter_servers[{index}]", address)
    return addresses


def heartbeat_timeout_seconds(request: registration_service_pb2.RegisterBrokerRequest) -> float | None:
    """How long the broker asks to be given; None if it does not. Raises InvalidField."""
    if not request.HasField("heartbeat_timeout_millis"):
        return None
    millis = request.heartbeat_timeout_millis
    lowest, highest = limits.MIN_HEARTBEAT_TIMEOUT_MILLIS, limits.MAX_HEARTBEAT_TIMEOUT_MILLIS
    if not lowest <= millis <= highest:
        raise InvalidField("heartbeat_timeout_millis", f"is {millis}, must be {lowest} to {highest}")
    return millis / 1000


def topic_queues(request: registration_service_pb2.RegisterTopicRequest) -> dict[BrokerKey, QueueNumbers]:
    """Checks the topic and the queues of a RegisterTopicRequest, by the rules of a registration.

    Raises:
        InvalidField: A part breaks its rule, there are no queues, or a group is there twice.
        LimitExceeded: There are too many groups.
    """
    field_rules.check_topic("topic", request.topic)
    count = len(request.queue_datas)
    if count == 0:
        raise InvalidField("queue_datas", "is empty; name the queues of at least one broker group")
    if count > limits.MAX_QUEUE_DATAS_PER_TOPIC:
        raise LimitExceeded("groups of one topic", count, limits.MAX_QUEUE_DATAS_PER_TOPIC)
    queues: dict[BrokerKey, QueueNumbers] = {}
    for index, message in enumerate(request.queue_datas):
        where = f"queue_datas[{index}]"
        broker, numbers = _queue_data(where, message)
        if broker in queues:
            name = f"{broker.broker_name!r} of cluster {broker.cluster_name!r}"
            raise InvalidField(f"{where}.broker_name", f"{name} is there twice")
        queues[broker] = numbers
    return queues


def unregister_reason(reason: route_data_pb2.RemovalReason) -> RemovalReason:
    """The reason that a caller may give for an unregistration. Raises InvalidField."""
    match reason:
        case route_data_pb2.REMOVAL_REASON_UNSPECIFIED | route_data_pb2.REMOVAL_REASON_UNREGISTERED:
            return RemovalReason.UNREGISTERED
        case route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
            return RemovalReason.BROKER_DOWN
    raise InvalidField("reason", f"is {reason}, only UNREGISTERED and BROKER_DOWN can be given")


def _has_numbers(message: route_data_pb2.TopicConfig) -> bool:
    return all(message.HasField(part) for part in ("read_queue_nums", "write_queue_nums", "perm"))


def _queue_data(where: str, message: route_data_pb2.QueueData) -> tuple[BrokerKey, QueueNumbers]:
    field_rules.check_name(f"{where}.cluster_name", message.cluster_name)
    field_rules.check_name(f"{where}.broker_name", message.broker_name)
    _check_queue_numbers(where, f"the group {message.broker_name!r}", message)
    if message.HasField("reported_perm"):
        raise InvalidField(f"{where}.reported_perm", "is set; only answers have it")
    numbers = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
    return BrokerKey(message.cluster_name, message.broker_name), numbers


def _check_queue_numbers(
    where: str, whose: str, message: route_data_pb2.TopicConfig | route_data_pb2.QueueData
) -> None:
    for part, highest in (
        ("read_queue_nums", MAX_QUEUE_NUMS),
        ("write_queue_nums", MAX_QUEUE_NUMS),
        ("perm", MAX_PERM),
    ):
        if not message.HasField(part):
            raise InvalidField(f"{where}.{part}", f"is missing for {whose}")
        if not 0 <= getattr(message, part) <= highest:
            value = getattr(message, part)
            raise InvalidField(f"{where}.{part}", f"is {value} for {whose}, 0 to {highest}")
    if message.topic_sys_flag < 0:
        raise InvalidField(f"{where}.topic_sys_flag", f"is {message.topic_sys_flag}, must not be negative")
