"""TopicConfigService: the calls that change and read topics, and their fields as records."""

from __future__ import annotations

import base64
import binascii
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import grpc
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1 import topic_config_service_pb2_grpc
from namesrv_api.v1 import route_data_pb2

from broker_agent.errors import InvalidField, NotMaster, TopicNotFound, TopicTableChanged
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from groundwork.topic_names import MAX_PERM, MAX_QUEUE_NUMS, check_topic

# Topics and their versions between our records and the wire.

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
    return route_data_pb2.DataVersion(
        timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
    )


def version_of(message: route_data_pb2.DataVersion) -> DataVersion:
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


# Attributes that a topic can have, and their changes (RocketMQ 5: TopicAttributes, AttributeUtil).

SET_FIELD, DELETE_FIELD = "set_attributes", "delete_attributes"
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute that topics can have."""

    values: frozenset[str]
    """The values that it can have."""
    changeable: bool
    """Whether a topic that exists may get, change or lose it."""


ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(frozenset({"SimpleCQ", "BatchCQ"}), changeable=False),
    "cleanup.policy": Attribute(frozenset({"DELETE", "COMPACTION"}), changeable=False),
    "message.type": Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE"}), changeable=True
    ),
}
"""All attributes by name. reserve.time is missing: RocketMQ refuses it, too, without a tiered store."""


def altered_attributes(
    current: Mapping[str, str] | None,
    to_set: Mapping[str, str],
    to_delete: Iterable[str],
    *,
    create: bool,
    known: Mapping[str, Attribute] = ATTRIBUTES,
) -> Mapping[str, str] | None:
    """A topic's attributes after a change.

    Args:
        current: Its attributes before; None if it has no such field.
        to_delete: Attributes to take away; the topic must have them.
        create: Whether the topic is new: then any attribute can be set and none taken away.

    Raises:
        InvalidField: An attribute is not known, may not change, cannot have this value, is not there to be taken away,
            or is named twice.
    """
    after = dict(current or {})
    for key, value in to_set.items():
        attribute = _alterable(f"{SET_FIELD}[{_shown(key)}]", key, known, create=create)
        if value not in attribute.values:
            rule = " or ".join(sorted(attribute.values))
            raise InvalidField(f"{SET_FIELD}[{_shown(key)}]", f"is {_shown(value)}, must be {rule}")
        after[key] = value
    seen = set(to_set)
    for index, key in enumerate(to_delete):
        field = f"{DELETE_FIELD}[{index}]"
        if key in seen:
            raise InvalidField(field, f"is {_shown(key)}, which the request names twice")
        seen.add(key)
        if create:
            raise InvalidField(field, f"is {_shown(key)}: a new topic has nothing to take away")
        if key not in after:
            raise InvalidField(field, f"is {_shown(key)}, which the topic does not have")
        _alterable(field, key, known, create=create)
        del after[key]
    return after if after or current is not None else None


def _alterable(field: str, key: str, known: Mapping[str, Attribute], *, create: bool) -> Attribute:
    attribute = known.get(key)
    if attribute is None:
        raise InvalidField(field, f"is no attribute of a topic; there are {', '.join(sorted(known))}")
    if not create and not attribute.changeable:
        raise InvalidField(field, f"is {_shown(key)}, which cannot change once the topic is there")
    return attribute


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."


# TopicConfigService: the calls that change and read topics.

SERVICE = pb.DESCRIPTOR.services_by_name["TopicConfigService"]
SERVICE_NAME = SERVICE.full_name
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 1_000, 10_000
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Most bytes of a page, half of what gRPC takes by default: attributes may be long."""
KEPT_TABLES = 4
"""Most tables that are kept for lists under way. Each is shared with the manager, or takes a few megabytes."""


class TopicConfigServicer(topic_config_service_pb2_grpc.TopicConfigServiceServicer):
    """Checks requests, and lets the manager do what they ask for."""

    def __init__(self, manager: TopicConfigManager, is_slave: Callable[[], bool]) -> None:
        """While the broker is a slave, only the master changes its topics."""
        self._manager = manager
        self._is_slave = is_slave
        self._listed = ListedTables()

    def CreateOrUpdateTopic(  # noqa: N802 - the contract's name, documented there
        self,
        request: pb.CreateOrUpdateTopicRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.CreateOrUpdateTopicResponse:
        """UPDATE_AND_CREATE_TOPIC, 17."""
        name = topic_name("topic.topic_name", request.topic.topic_name)
        if request.topic.attributes:
            raise InvalidField("topic.attributes", "must be empty: use set_attributes and delete_attributes")
        self._check_master()

        def make(before: TopicConfig | None) -> TopicConfig:
            topic = merged_topic("topic", request.topic, before)
            attributes = altered_attributes(
                topic.attributes, request.set_attributes, request.delete_attributes, create=before is None
            )
            return replace(topic, attributes=attributes)

        change = self._manager.edit(name, make, validate_only=request.validate_only)
        return pb.CreateOrUpdateTopicResponse(
            topic=topic_message(change.after) if change.after else None,
            created=change.before is None,
            changed=change.after != change.before,
            data_version=version_message(change.data_version),
        )

    def DeleteTopic(  # noqa: N802
        self,
        request: pb.DeleteTopicRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.DeleteTopicResponse:
        """DELETE_TOPIC_IN_BROKER, 215."""
        name = topic_name("topic_name", request.topic_name)
        self._check_master()
        change = self._manager.delete(name, validate_only=request.validate_only)
        return pb.DeleteTopicResponse(
            topic=topic_message(change.before) if change.before else None,
            data_version=version_message(change.data_version),
        )

    def GetTopic(  # noqa: N802
        self,
        request: pb.GetTopicRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.GetTopicResponse:
        """GET_TOPIC_CONFIG, 351."""
        name = topic_name("topic_name", request.topic_name)
        table = self._manager.table
        topic = table.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return pb.GetTopicResponse(topic=topic_message(topic), data_version=version_message(table.data_version))

    def ListTopics(  # noqa: N802
        self,
        request: pb.ListTopicsRequest,
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.ListTopicsResponse:
        """GET_ALL_TOPIC_CONFIG, 21."""
        if request.page_size < 0:
            raise InvalidField("page_size", f"is {request.page_size}, must not be negative")
        size = min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        table, start = self._manager.table, 0
        if request.page_token:
            version, start = _read_token(request.page_token)
            table = self._listed.get(version, table)
        answer = pb.ListTopicsResponse(data_version=version_message(table.data_version), total=len(table.topics))
        if not request.page_token and request.HasField("unless_version"):
            answer.unchanged = version_of(request.unless_version) == table.data_version
            if answer.unchanged:
                return answer
        end = _fill(answer, table, start, size)
        if end < len(table.topics):
            self._listed.keep(table)
            answer.next_page_token = _token(table.data_version, end)
        return answer

    def _check_master(self) -> None:
        if self._is_slave() and not self._manager.follows:  # a manager that follows a file has its own, better reason
            raise NotMaster


class ListedTables:
    """The tables of the last few lists that have begun, so that all pages of a list are of one table."""

    def __init__(self) -> None:
        self._tables: OrderedDict[DataVersion, TopicConfigTable] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, table: TopicConfigTable) -> None:
        """Keeps a table until enough others have been listed."""
        with self._lock:
            self._tables[table.data_version] = table
            self._tables.move_to_end(table.data_version)
            if len(self._tables) > KEPT_TABLES:
                self._tables.popitem(last=False)

    def get(self, version: DataVersion, current: TopicConfigTable) -> TopicConfigTable:
        """The table of that version. Raises TopicTableChanged if it is gone."""
        if current.data_version == version:
            return current
        with self._lock:
            table = self._tables.get(version)
        if table is None:
            raise TopicTableChanged
        return table


def _fill(answer: pb.ListTopicsResponse, table: TopicConfigTable, start: int, size: int) -> int:
    """Adds at least one topic, and more while there is room; returns where the next page starts."""
    room = MAX_PAGE_BYTES
    for index, topic in enumerate(table.topics[start : start + size], start):
        message = topic_message(topic)
        room -= message.ByteSize()
        if room < 0 and index > start:
            return index
        answer.topics.append(message)
    return min(start + size, len(table.topics))


def _token(version: DataVersion, index: int) -> str:
    state = "" if version.state_version is None else version.state_version
    return base64.urlsafe_b64encode(f"{version.timestamp_millis}.{version.counter}.{state}.{index}".encode()).decode()


def _read_token(token: str) -> tuple[DataVersion, int]:
    try:
        parts = base64.b64decode(token, altchars=b"-_", validate=True).decode("ascii").split(".")
        timestamp, counter, state, index = parts
        version = DataVersion(int(timestamp), int(counter), int(state) if state else None)
        start = int(index)
    except (binascii.Error, ValueError):
        raise InvalidField("page_token", "is not a next_page_token of this call") from None
    if start < 0:
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return version, start
