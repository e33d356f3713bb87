"""Topics and their versions between our records and the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker_agent_api.v1 import topic_config_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.rpc_errors import InvalidField
from broker_agent.topics.table import DataVersion, TopicConfig
from groundwork.topic_names import MAX_PERM, MAX_QUEUE_NUMS, check_topic

_DEFAULT_QUEUES, _READ_WRITE = 16, 6
_MAX_SYS_FLAG = 2**31 - 1
_FILTER_TYPES = {
    pb.TOPIC_FILTER_TYPE_SINGLE_TAG: "SINGLE_TAG",
    pb.TOPIC_FILTER_TYPE_MULTI_TAG: "MULTI_TAG",
}
_FILTER_TYPES_BY_NAME = {name: number for number, name in _FILTER_TYPES.items()}


def topic_name(field: str, name: str) -> str:
    """Checks the name of a topic. Raises InvalidField."""
    try:
        return check_topic(name)
    except ValueError as error:
        raise InvalidField(field, str(error)) from error


def merged_topic(field: str, message: pb.TopicConfig, before: TopicConfig | None) -> TopicConfig:
    """The topic that a message makes of one before, attributes aside: fields that are absent stay.

    Args:
        field: Path of the message in the request.
        message: The topic as it shall be.
        before: The topic as it is; None makes a new one with RocketMQ's defaults.

    Raises:
        InvalidField: A field breaks its rule.
    """
    _check_range(field, message, "read_queue_nums", MAX_QUEUE_NUMS)
    _check_range(field, message, "write_queue_nums", MAX_QUEUE_NUMS)
    _check_range(field, message, "perm", MAX_PERM)
    _check_range(field, message, "topic_sys_flag", _MAX_SYS_FLAG)
    base = before or TopicConfig(message.topic_name, _DEFAULT_QUEUES, _DEFAULT_QUEUES, _READ_WRITE)
    filter_type = base.topic_filter_type
    if message.topic_filter_type != pb.TOPIC_FILTER_TYPE_UNSPECIFIED:
        if message.topic_filter_type not in _FILTER_TYPES:
            number = message.topic_filter_type
            raise InvalidField(f"{field}.topic_filter_type", f"is {number}, must be a value of TopicFilterType")
        filter_type = _FILTER_TYPES[message.topic_filter_type]
    return replace(
        base,
        read_queue_nums=_either(message, "read_queue_nums", base.read_queue_nums),
        write_queue_nums=_either(message, "write_queue_nums", base.write_queue_nums),
        perm=_either(message, "perm", base.perm),
        topic_sys_flag=_either(message, "topic_sys_flag", base.topic_sys_flag),
        order=message.order if message.HasField("order") else base.order,
        topic_filter_type=filter_type,
    )


def copied_topic(message: pb.TopicConfig) -> TopicConfig:
    """A topic as another agent says it is, whole. Raises InvalidField."""
    name = topic_name("topic_name", message.topic_name)
    topic = merged_topic(f"topic {name!r}", message, None)
    attributes: Mapping[str, str] | None = dict(message.attributes) or None
    return replace(topic, attributes=attributes)


def topic_message(topic: TopicConfig) -> pb.TopicConfig:
    """A topic as it travels."""
    return pb.TopicConfig(
        topic_name=topic.topic_name,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm,
        topic_sys_flag=topic.topic_sys_flag,
        order=topic.order,
        topic_filter_type=_FILTER_TYPES_BY_NAME.get(topic.topic_filter_type, pb.TOPIC_FILTER_TYPE_UNSPECIFIED),
        attributes=topic.attributes,
    )


def version_message(version: DataVersion) -> route_data_pb2.DataVersion:
    """A version as it travels."""
    return route_data_pb2.DataVersion(
        timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
    )


def version_of(message: route_data_pb2.DataVersion) -> DataVersion:
    """The version in a message."""
    return DataVersion(
        timestamp_millis=message.timestamp_millis,
        counter=message.counter,
        state_version=message.state_version if message.HasField("state_version") else None,
    )


def _check_range(path: str, message: pb.TopicConfig, field: str, highest: int) -> None:
    value = getattr(message, field)
    if not 0 <= value <= highest:
        raise InvalidField(f"{path}.{field}", f"is {value}, must be from 0 to {highest}")


def _either(message: pb.TopicConfig, field: str, otherwise: int) -> int:
    return int(getattr(message, field)) if message.HasField(field) else otherwise
