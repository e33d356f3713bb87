"""Requests of RegistrationService to records: every rule on input, with an error that names field and limit."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Container
from functools import lru_cache
from typing import NamedTuple

from namesrv_api.v1 import registration_service_pb2, route_data_pb2

from groundwork.topic_rules import MAX_MAPPED_QUEUES, MAX_PERM, MAX_QUEUE_NUMS
from namesrv.config import limits
from namesrv.core.errors import Crc32NotMatch, InvalidField, LimitExceeded
from namesrv.core.model import BrokerKey, DataVersion, QueueNumbers, Registration, RemovalReason, ReportedQueues
from namesrv.core.slices import Sliced
from namesrv.server.services import field_rules
from namesrv.server.services.registration.mappings import MAPPED_SLICE, static_mapping

KNOWN_IDENTITIES = 16_384
"""Brokers whose identity is not checked again: the checks take half the time of a heartbeat. Some 10 MB at most."""

READ_SLICE = 100
"""Topics that are read before giving way: a sixth of a millisecond."""

CRC32_SLICE = 500
"""Topics that a checksum is taken of before giving way: about a millisecond."""


class BrokerIdentity(NamedTuple):
    """Which broker a request is about."""

    broker: BrokerKey
    broker_id: int
    broker_addr: str


class TopicsRead(dict[str, ReportedQueues]):
    """Topics of one registration that have been read so far, of all its parts."""

    mapped_queues = 0
    """Queues in the mappings of its static topics."""

    def add_mapped(self, count: int) -> None:
        """Counts queues of one more mapping. Raises LimitExceeded."""
        self.mapped_queues += count
        if self.mapped_queues > MAX_MAPPED_QUEUES:
            raise LimitExceeded("queues in mappings of one registration", self.mapped_queues, MAX_MAPPED_QUEUES)


def broker_identity(message: route_data_pb2.BrokerIdentity) -> BrokerIdentity:
    """Checks a BrokerIdentity.

    Raises:
        InvalidField: A part is missing or breaks its rule.
    """
    broker_id = message.broker_id if message.HasField("broker_id") else None
    return _checked_identity(message.cluster_name, message.broker_name, broker_id, message.broker_addr)


@lru_cache(KNOWN_IDENTITIES)
def _checked_identity(cluster_name: str, broker_name: str, broker_id: int | None, broker_addr: str) -> BrokerIdentity:
    field_rules.check_name("broker.cluster_name", cluster_name)
    field_rules.check_name("broker.broker_name", broker_name)
    if broker_id is None:
        raise InvalidField("broker.broker_id", "is missing; 0 is the master, a slave has a higher id")
    if broker_id < 0:
        raise InvalidField("broker.broker_id", f"is {broker_id}, must not be negative")
    field_rules.check_address("broker.broker_addr", broker_addr)
    return BrokerIdentity(BrokerKey(cluster_name, broker_name), broker_id, broker_addr)


def data_version(field: str, message: route_data_pb2.DataVersion) -> DataVersion:
    """Checks a DataVersion.

    Raises:
        InvalidField: Timestamp or counter is missing or negative.
    """
    timestamp_millis, counter = message.timestamp_millis, message.counter
    if timestamp_millis > 0 and counter > 0:  # so both are there
        return DataVersion(timestamp_millis, counter, message.state_version)
    for part in ("timestamp_millis", "counter"):
        if not message.HasField(part):
            raise InvalidField(f"{field}.{part}", "is missing; a DataVersion needs timestamp_millis and counter")
        if getattr(message, part) < 0:
            raise InvalidField(f"{field}.{part}", f"is {getattr(message, part)}, must not be negative")
    return DataVersion(timestamp_millis, counter, message.state_version)


def registration(request: registration_service_pb2.RegisterBrokerRequest) -> Registration:
    """Checks all of a registration but its topics, which are not in what it returns.

    Raises:
        InvalidField: A field is missing or breaks its rule.
        LimitExceeded: There are too many topics or filter servers.
    """
    check_topic_count(len(request.topic_configs))  # before anything waits: 4 MiB of empty ones take 80 MiB
    broker, broker_id, broker_addr = broker_identity(request.broker)
    if request.HasField("ha_server_addr"):
        field_rules.check_address("ha_server_addr", request.ha_server_addr)
    if request.HasField("zone_name"):
        field_rules.check_name("zone_name", request.zone_name)
    increment = request.HasField("base_version")
    return Registration(
        broker=broker,
        broker_id=broker_id,
        broker_addr=broker_addr,
        data_version=data_version("data_version", request.data_version),
        topic_configs=None,
        ha_server_addr=request.ha_server_addr if request.HasField("ha_server_addr") else None,
        filter_servers=filter_servers(request),
        channel_id=request.channel_id if request.HasField("channel_id") else None,
        base_version=data_version("base_version", request.base_version) if increment else None,
        zone_name=request.zone_name if request.HasField("zone_name") else None,
        enable_acting_master=request.enable_acting_master if request.HasField("enable_acting_master") else None,
        timeout_seconds=heartbeat_timeout_seconds(request),
    )


def read_topics(
    messages: Collection[route_data_pb2.TopicConfig], known_topics: Container[str], read: TopicsRead | None = None
) -> Sliced[TopicsRead]:
    """Checks topic configurations in steps, and puts what they say to those that have been read.

    Args:
        messages: The configurations of a request.
        known_topics: Names that have been checked before: the names in the topic table.
        read: Topics of the same registration: those of its parts so far; None if it has none. Of no use any more after
            an error.

    Returns:
        Those that have been read, with what was added.

    Raises:
        InvalidField: One breaks a rule, or a topic is there twice.
        LimitExceeded: There are too many, or queues in their mappings, with those that have been read.
    """
    read = TopicsRead() if read is None else read
    check_topic_count(len(read) + len(messages))
    shared: dict[QueueNumbers, QueueNumbers] = {}  # checked before; a tuple for each topic would take a hundred bytes
    for index, message in enumerate(messages):
        topic = message.topic_name
        if topic not in known_topics:
            field_rules.check_topic(f"topic_configs[{index}].topic_name", topic)
        if topic in read:
            raise InvalidField(f"topic_configs[{index}].topic_name", f"{topic!r} is there twice")
        numbers = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
        checked = shared.get(numbers)
        if checked is None:
            _check_queue_numbers(f"topic_configs[{index}]", f"the topic {topic!r}", message)
            checked = numbers
            if 0 not in numbers[:3]:  # zero may mean absent, which is for each message to be looked at
                shared[numbers] = numbers
        if message.HasField("mapping"):
            before = read.mapped_queues
            read.add_mapped(len(message.mapping.topic_queue_ids))
            mapping = yield from static_mapping(f"topic_configs[{index}].mapping", topic, message.mapping)
            read[topic] = (*checked, mapping)
            if before // MAPPED_SLICE != read.mapped_queues // MAPPED_SLICE:
                yield
        else:
            read[topic] = checked
        if index % READ_SLICE == READ_SLICE - 1:
            yield
    return read


def check_topic_count(count: int) -> None:
    """Checks the number of topics of a registration. Raises LimitExceeded."""
    if count > limits.MAX_TOPICS_PER_REGISTRATION:
        raise LimitExceeded("topics of one registration", count, limits.MAX_TOPICS_PER_REGISTRATION)


def check_given_channel(channel_id: str, why: str) -> None:
    """Checks that a request names a channel: who named none is not to open another one, as ChannelGone would have it.

    Raises:
        InvalidField: It names none.
    """
    if not channel_id:
        raise InvalidField("channel_id", f"is missing; {why}")


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


def _queue_data(where: str, message: route_data_pb2.QueueData) -> tuple[BrokerKey, QueueNumbers]:
    field_rules.check_name(f"{where}.cluster_name", message.cluster_name)
    field_rules.check_name(f"{where}.broker_name", message.broker_name)
    _check_queue_numbers(where, f"the group {message.broker_name!r}", message)
    for part in ("reported_perm", "mapping"):
        if message.HasField(part):
            raise InvalidField(f"{where}.{part}", "is set; only answers have it")
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
