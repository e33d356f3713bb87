"""TopicConfigService over gRPC, with upstream's scenarios 67 and 77."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub
from structlog.testing import capture_logs

from broker_agent import listener
from broker_agent.topics import topic_service
from broker_agent.topics.files import load_topic_config_table
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.agents import own_topics, topic_agent
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock, agent_timing


@contextmanager
def stub_of(endpoint: Endpoint) -> Iterator[TopicConfigServiceStub]:
    with grpc.insecure_channel(str(endpoint)) as channel:
        yield TopicConfigServiceStub(channel)


def error_of(call: Callable[[], object]) -> RichError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return RichError.of(raised.value)


TOPICS = tuple(TopicConfig(f"topic-{number}", number, number, 6) for number in range(10))
VERSION = DataVersion(999_000, 5)


class Agent:
    """The manager of ten topics, and a client of its service."""

    def __init__(self, manager: TopicConfigManager, stub: TopicConfigServiceStub) -> None:
        self.manager = manager
        self.stub = stub

    def put(self, topic: pb.TopicConfig, **fields: Any) -> pb.CreateOrUpdateTopicResponse:
        return self.stub.CreateOrUpdateTopic(pb.CreateOrUpdateTopicRequest(topic_config=topic, **fields))

    def chunks(self) -> list[pb.ListTopicsResponse]:
        return list(self.stub.ListTopics(pb.ListTopicsRequest()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_bytes(encode_topics(TopicConfigTable(VERSION, TOPICS)))
    return path


@pytest.fixture
def topic_owner(path: Path) -> Iterator[Agent]:
    manager = own_topics(path, timing=agent_timing(VirtualClock()))
    with topic_agent(TopicConfigServicer(manager, lambda: False)) as endpoint, stub_of(endpoint) as stub:
        yield Agent(manager, stub)


def test_a_new_topic_has_what_was_said_and_rocketmqs_defaults_for_the_rest(topic_owner: Agent, path: Path) -> None:
    answer = topic_owner.put(pb.TopicConfig(topic="New", read_queue_nums=0), set_attributes={"message.type": "FIFO"})
    expected = TopicConfig("New", 0, 16, 6, attributes={"message.type": "FIFO"})
    assert (answer.created, answer.changed, answer.data_version.counter) == (True, True, 6)
    assert answer.topic_config == topic_owner.stub.GetTopic(pb.GetTopicRequest(topic="New")).topic_config
    config = answer.topic_config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (0, 16, 6)
    assert load_topic_config_table(path).get("New") == expected


def test_absent_fields_stay_and_the_same_again_makes_no_version(topic_owner: Agent) -> None:
    topic_owner.put(pb.TopicConfig(topic="topic-3", order=True, topic_sys_flag=1))
    topic_owner.put(pb.TopicConfig(topic="topic-3", perm=4, topic_filter_type=pb.TOPIC_FILTER_TYPE_MULTI_TAG))
    assert topic_owner.manager.table.get("topic-3") == TopicConfig("topic-3", 3, 3, 4, 1, True, "MULTI_TAG")
    answer = topic_owner.put(pb.TopicConfig(topic="topic-3", perm=4))
    assert (answer.created, answer.changed, answer.data_version.counter) == (False, False, 7)


def test_a_call_that_only_checks_answers_what_would_be_and_changes_nothing(topic_owner: Agent, path: Path) -> None:
    before = path.read_bytes()
    answer = topic_owner.put(pb.TopicConfig(topic="New"), validate_only=True)
    assert (answer.created, answer.data_version.counter) == (True, 6)
    for only_checked in (True, False):
        assert (topic_owner.manager.table.data_version, path.read_bytes()) == (VERSION, before)
        request = pb.DeleteTopicRequest(topic="topic-3", validate_only=only_checked)
        deleted = topic_owner.stub.DeleteTopic(request)
        assert (deleted.topic_config.read_queue_nums, deleted.data_version.counter) == (3, 6)
    assert load_topic_config_table(path).get("topic-3") is None


@pytest.mark.parametrize(
    ("topic", "field"),
    [
        (pb.TopicConfig(), "topic_config.topic"),
        (pb.TopicConfig(topic="T", read_queue_nums=65_536), "topic_config.read_queue_nums"),
        (pb.TopicConfig(topic="T", write_queue_nums=65_536), "topic_config.write_queue_nums"),
        (pb.TopicConfig(topic="T", perm=8), "topic_config.perm"),
        (pb.TopicConfig(topic="T", topic_sys_flag=-1), "topic_config.topic_sys_flag"),
        (pb.TopicConfig(topic="T", topic_filter_type=3), "topic_config.topic_filter_type"),  # type: ignore[arg-type]
        (pb.TopicConfig(topic="T", attributes={"message.type": "FIFO"}), "topic_config.attributes"),
    ],
)
def test_a_bad_field_is_named_and_nothing_changes(topic_owner: Agent, topic: pb.TopicConfig, field: str) -> None:
    error = error_of(lambda: topic_owner.put(topic))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert [violation.field for violation in error.violations] == [field]
    assert topic_owner.manager.table.data_version == VERSION


def test_topics_come_in_order_in_messages_of_limited_size(topic_owner: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    [chunk] = topic_owner.chunks()
    assert (chunk.data_version.counter, chunk.topic_count, len(chunk.topic_configs)) == (5, 10, 10)
    for size, lengths in ((50, [2, 2, 2, 2, 2]), (1, [1] * 10)):
        monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", size)
        chunks = topic_owner.chunks()
        assert [len(chunk.topic_configs) for chunk in chunks] == lengths
        assert [config.topic for chunk in chunks for config in chunk.topic_configs] == [
            topic.topic_name for topic in TOPICS
        ]
        assert [(chunk.HasField("data_version"), chunk.topic_count) for chunk in chunks[:2]] == [(True, 10), (False, 0)]


@contextmanager
def large_table(path: Path) -> Iterator[Endpoint]:
    """The service of more topics than gRPC buffers."""
    attributes = {"a": "x" * 100_000}
    topics = tuple(TopicConfig(f"topic-{number}", 1, 1, 6, attributes=attributes) for number in range(100))
    path.write_bytes(encode_topics(TopicConfigTable(VERSION, topics)))
    manager = own_topics(path)
    with topic_agent(TopicConfigServicer(manager, lambda: False)) as endpoint:
        yield endpoint


@contextmanager
def unread_lists(endpoint: Endpoint, count: int) -> Iterator[list[Any]]:
    """Lists of topics. Their first messages have been read, and no more."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]  # else gRPC buffers much more
    with grpc.insecure_channel(str(endpoint), options) as channel:
        lists: list[Any] = [TopicConfigServiceStub(channel).ListTopics(pb.ListTopicsRequest()) for _ in range(count)]
        for one in lists:
            assert next(one).topic_count == 100
        yield lists


def test_readers_that_take_nothing_hold_up_nobody_and_are_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SLOW_READER_SECONDS", 2.0)
    with (
        capture_logs() as logs,
        large_table(path) as endpoint,
        unread_lists(endpoint, listener.THREADS + 1) as unread,
        stub_of(endpoint) as stub,
    ):
        assert len(list(stub.ListTopics(pb.ListTopicsRequest(), timeout=20.0))) > 10
        eventually(lambda: [line["event"] for line in logs].count("slow_reader_cut") == len(unread))
        for one in unread:
            assert error_of(partial(list, one)).reason == "SLOW_READER"


def test_lists_over_the_limit_are_refused_until_another_has_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_TOPIC_LISTS", 3)
    with large_table(path) as endpoint, unread_lists(endpoint, 3) as unread, stub_of(endpoint) as stub:
        error = error_of(lambda: list(stub.ListTopics(pb.ListTopicsRequest())))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
        assert error.metadata["limit"] == "3"
        unread[0].cancel()

        def listed() -> bool:
            with suppress(grpc.RpcError):
                return len(list(stub.ListTopics(pb.ListTopicsRequest()))) > 1
            return False

        eventually(listed)


def test_a_caller_with_the_current_version_gets_no_topics(topic_owner: Agent) -> None:
    version = topic_owner.chunks()[0].data_version
    [same] = topic_owner.stub.ListTopics(pb.ListTopicsRequest(unless_version=version))
    assert (same.unchanged, len(same.topic_configs), same.data_version, same.topic_count) == (True, 0, version, 10)
    version.state_version = 0
    [other] = topic_owner.stub.ListTopics(pb.ListTopicsRequest(unless_version=version))
    assert len(other.topic_configs) == 10


def test_fields_of_the_file_that_the_wire_has_not_survive_an_update(topic_owner: Agent) -> None:
    topic_owner.manager.copy((replace(TOPICS[1], unknown={"new": 1}),), VERSION)
    topic_owner.put(pb.TopicConfig(topic="topic-1", perm=2))
    assert topic_owner.manager.table.get("topic-1") == replace(TOPICS[1], perm=2, unknown={"new": 1})


def test_scenario_67_versions_are_equal_only_if_all_their_parts_are() -> None:
    version = DataVersion(1_000, 1, 0)
    assert copy(version) == version
    assert version != DataVersion(1_000, 2, 0)
    assert version != DataVersion(1_001, 1, 0)
    assert version != DataVersion(1_000, 1, 1)


def test_scenario_77_changed_attributes_survive_a_restart(topic_owner: Agent, path: Path) -> None:
    def put(to_set: Mapping[str, str], to_delete: Sequence[str] = ()) -> Mapping[str, str]:
        topic = pb.TopicConfig(topic="TopicTest")
        return topic_owner.put(topic, set_attributes=to_set, delete_attributes=to_delete).topic_config.attributes

    made = {"queue.type": "BatchCQ", "message.type": "NORMAL"}
    assert put(made) == made
    assert put({"message.type": "FIFO"}) == {"queue.type": "BatchCQ", "message.type": "FIFO"}
    assert put({}, ["message.type"]) == {"queue.type": "BatchCQ"}
    assert load_topic_config_table(path) == topic_owner.manager.table
    assert own_topics(path).table == topic_owner.manager.table
