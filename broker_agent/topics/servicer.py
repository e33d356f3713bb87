"""TopicConfigService: the calls that change and read topics."""

from __future__ import annotations

import base64
import binascii
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import grpc
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1 import topic_config_service_pb2_grpc

from broker_agent.rpc_errors import InvalidField, NotMaster, TopicNotFound, TopicTableChanged
from broker_agent.topics.attributes import altered_attributes
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.messages import merged_topic, topic_message, topic_name, version_message, version_of
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable

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
        """Creates it.

        Args:
            manager: Keeps the topics.
            is_slave: Whether the broker is a slave now: then only the master changes its topics.
        """
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
