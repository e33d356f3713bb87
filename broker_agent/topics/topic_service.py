"""TopicConfigService: the calls that change and read topics, and their fields as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from broker_agent_api.v1 import topic_config_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.errors import Reason, checked, topic_not_found
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig
from namesrv_common.errors import FieldProblems, Refused, invalid_field
from namesrv_common.topic_names import MAX_PERM, MAX_QUEUE_NUMS, check_topic, shown_name

# Topics and their versions between the agent's records and the wire.

_DEFAULT_QUEUES, _READ_WRITE = 16, 6
_FILTER_TYPES = {pb.TOPIC_FILTER_TYPE_SINGLE_TAG: "SINGLE_TAG", pb.TOPIC_FILTER_TYPE_MULTI_TAG: "MULTI_TAG"}
_FILTER_TYPES_BY_NAME = {name: number for number, name in _FILTER_TYPES.items()}
_HIGHEST = {
    "read_queue_nums": MAX_QUEUE_NUMS,
    "write_queue_nums": MAX_QUEUE_NUMS,
    "perm": MAX_PERM,
    "topic_sys_flag": 2**31 - 1,
}
"""The highest value of each numeric field of a topic."""
_COPIED = (*_HIGHEST, "order")
"""Fields that a record and a message have alike."""


def merged_topic(field: str, message: pb.TopicConfig, before: TopicConfig | None) -> TopicConfig:
    """The topic that a message makes of one before, attributes aside: fields that are absent stay.

    Args:
        field: Path of the message in the request.
        before: The topic as it is; None makes a new one with RocketMQ's defaults.

    Raises:
        INVALID_FIELD: A field breaks its rule.
    """
    problems = FieldProblems()
    for part, highest in _HIGHEST.items():
        with problems:
            if not 0 <= (value := getattr(message, part)) <= highest:
                raise invalid_field(f"{field}.{part}", f"is {value}, must be from 0 to {highest}")
    given: dict[str, Any] = {part: getattr(message, part) for part in _COPIED if message.HasField(part)}
    with problems:
        if (number := message.topic_filter_type) != pb.TOPIC_FILTER_TYPE_UNSPECIFIED:
            if number not in _FILTER_TYPES:
                raise invalid_field(f"{field}.topic_filter_type", f"is {number}, must be a value of TopicFilterType")
            given["topic_filter_type"] = _FILTER_TYPES[number]
    problems.raise_any()
    return replace(before or TopicConfig(message.topic, _DEFAULT_QUEUES, _DEFAULT_QUEUES, _READ_WRITE), **given)


def copied_topic(message: pb.TopicConfig) -> TopicConfig:
    """A topic as another agent says it is, whole. Raises INVALID_FIELD."""
    name = checked("topic", check_topic, message.topic)
    topic = merged_topic(f"topic {name!r}", message, None)
    attributes: Mapping[str, str] | None = dict(message.attributes) or None
    return replace(topic, attributes=attributes)


def topic_message(topic: TopicConfig) -> pb.TopicConfig:
    return pb.TopicConfig(
        topic=topic.topic_name,
        topic_filter_type=_FILTER_TYPES_BY_NAME.get(topic.topic_filter_type, pb.TOPIC_FILTER_TYPE_UNSPECIFIED),
        attributes=topic.attributes,
        **{part: getattr(topic, part) for part in _COPIED},
    )


def version_message(version: DataVersion) -> route_data_pb2.DataVersion:
    return route_data_pb2.DataVersion(**asdict(version))


def version_of(message: route_data_pb2.DataVersion) -> DataVersion:
    state_version = message.state_version if message.HasField("state_version") else None
    return DataVersion(message.timestamp_millis, message.counter, state_version)


# Attributes that a topic can have, and their changes (RocketMQ 5: TopicAttributes, AttributeUtil).

SET_FIELD, DELETE_FIELD = "set_attributes", "delete_attributes"
ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "queue.type": frozenset({"SimpleCQ", "BatchCQ"}),
    "cleanup.policy": frozenset({"DELETE", "COMPACTION"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE"}),
}
"""The values of each attribute. reserve.time is missing: RocketMQ refuses it, too, without a tiered store."""
CHANGEABLE = frozenset({"message.type"})
"""Attributes that a topic that exists may get, change or lose."""


def altered_attributes(
    current: Mapping[str, str] | None, to_set: Mapping[str, str], to_delete: Iterable[str], *, create: bool
) -> Mapping[str, str] | None:
    """A topic's attributes after a change.

    Args:
        current: Its attributes before; None if it has no such field.
        to_delete: Attributes to take away; the topic must have them.
        create: Whether the topic is new: then any attribute can be set and none taken away.

    Raises:
        INVALID_FIELD: An attribute is not known, may not change, cannot have this value, is not there to be taken away,
            or is named twice.
    """
    after = dict(current or {})
    for key, value in to_set.items():
        values = _alterable(f"{SET_FIELD}[{shown_name(key)}]", key, create=create)
        if value not in values:
            rule = " or ".join(sorted(values))
            raise invalid_field(f"{SET_FIELD}[{shown_name(key)}]", f"is {shown_name(value)}, must be {rule}")
        after[key] = value
    seen = set(to_set)
    for index, key in enumerate(to_delete):
        field = f"{DELETE_FIELD}[{index}]"
        if key in seen:
            raise invalid_field(field, f"is {shown_name(key)}, which the request names twice")
        seen.add(key)
        if create:
            raise invalid_field(field, f"is {shown_name(key)}: a new topic has nothing to take away")
        if key not in after:
            raise invalid_field(field, f"is {shown_name(key)}, which the topic does not have")
        _alterable(field, key, create=create)
        del after[key]
    return after if after or current is not None else None


def _alterable(field: str, key: str, *, create: bool) -> frozenset[str]:
    """The values of an attribute that may be altered. Raises INVALID_FIELD."""
    values = ATTRIBUTES.get(key)
    if values is None:
        raise invalid_field(field, f"is no attribute of a topic; there are {', '.join(sorted(ATTRIBUTES))}")
    if not create and key not in CHANGEABLE:
        raise invalid_field(field, f"is {shown_name(key)}, which cannot change once the topic is there")
    return values


SERVICE = pb.DESCRIPTOR.services_by_name["TopicConfigService"]
MAX_CHUNK_BYTES = 256 * 1024
"""Most bytes of topics in one message of a list. A larger topic has a message of its own."""


class TopicConfigServicer:
    """Checks requests, and lets the manager do what they ask for."""

    def __init__(self, manager: TopicConfigManager, is_slave: Callable[[], bool]) -> None:
        """While the broker is a slave, only the master changes its topics."""
        self._manager = manager
        self._is_slave = is_slave

    def CreateOrUpdateTopic(
        self, request: pb.CreateOrUpdateTopicRequest, _context: object
    ) -> pb.CreateOrUpdateTopicResponse:
        """UPDATE_AND_CREATE_TOPIC, 17."""
        name = checked("topic_config.topic", check_topic, request.topic_config.topic)
        if request.topic_config.attributes:
            raise invalid_field("topic_config.attributes", "must be empty: use set_attributes and delete_attributes")
        self._check_master()

        def make(before: TopicConfig | None) -> TopicConfig:
            problems, current = FieldProblems(), before.attributes if before is not None else None
            with problems:
                topic = merged_topic("topic_config", request.topic_config, before)
            with problems:
                attributes = altered_attributes(
                    current, request.set_attributes, request.delete_attributes, create=before is None
                )
            problems.raise_any()
            return replace(topic, attributes=attributes)

        change = self._manager.edit(name, make, validate_only=request.validate_only)
        return pb.CreateOrUpdateTopicResponse(
            topic_config=topic_message(change.after) if change.after else None,
            created=change.before is None,
            changed=change.after != change.before,
            data_version=version_message(change.data_version),
        )

    def DeleteTopic(self, request: pb.DeleteTopicRequest, _context: object) -> pb.DeleteTopicResponse:
        """DELETE_TOPIC_IN_BROKER, 215."""
        name = checked("topic", check_topic, request.topic)
        self._check_master()
        change = self._manager.delete(name, validate_only=request.validate_only)
        return pb.DeleteTopicResponse(
            topic_config=topic_message(change.before) if change.before else None,
            data_version=version_message(change.data_version),
        )

    def GetTopic(self, request: pb.GetTopicRequest, _context: object) -> pb.GetTopicResponse:
        """GET_TOPIC_CONFIG, 351."""
        name = checked("topic", check_topic, request.topic)
        table = self._manager.table
        topic = table.get(name)
        if topic is None:
            raise topic_not_found(name)
        return pb.GetTopicResponse(topic_config=topic_message(topic), data_version=version_message(table.data_version))

    def ListTopics(self, request: pb.ListTopicsRequest, _context: object) -> Iterator[pb.ListTopicsResponse]:
        """GET_ALL_TOPIC_CONFIG, 21. The first message has the version, also if there are no topics."""
        table = self._manager.table
        version, count = version_message(table.data_version), len(table.topics)
        if request.HasField("unless_version") and version_of(request.unless_version) == table.data_version:
            yield pb.ListTopicsResponse(data_version=version, topic_count=count, unchanged=True)
            return
        chunk, room = pb.ListTopicsResponse(data_version=version, topic_count=count), MAX_CHUNK_BYTES
        for topic in table.topics:
            message = topic_message(topic)
            room -= message.ByteSize()
            if room < 0 and chunk.topic_configs:
                yield chunk
                chunk, room = pb.ListTopicsResponse(), MAX_CHUNK_BYTES - message.ByteSize()
            chunk.topic_configs.append(message)
        yield chunk

    def _check_master(self) -> None:
        if self._is_slave() and not self._manager.follows:  # a manager that follows a file has its own, better reason
            text = "this broker is a slave and copies its topics: change topics at the master"
            raise Refused(Reason.NOT_MASTER, text)
