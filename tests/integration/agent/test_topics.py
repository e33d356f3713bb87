"""Topics of an agent over gRPC, with upstream's scenarios 67 and 77: the calls, and what a slave copies with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub
from structlog.testing import capture_logs

from broker_agent import listener
from broker_agent.topics import slave_synchronize, topic_service
from broker_agent.topics.files import load_topic_config_table
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.slave_synchronize import CopyFailed, MasterAgent, SlaveSynchronize
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer, topic_message
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.client.channels import ResponseLimits
from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import limit_exceeded
from namesrv_common.grpc_errors import RichError
from tests.support.agents import own_topics, put_topic, settings_of, topic_agent
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock, agent_timing

RICH = TopicConfig("topic-9", 9, 9, 6, order=True, attributes={"message.type": "FIFO"})
TOPICS = (*(TopicConfig(f"topic-{number}", number, number, 6) for number in range(9)), RICH)
VERSION = DataVersion(999_000, 5)


def owned(path: Path, *topics: TopicConfig, version: DataVersion = VERSION) -> TopicConfigManager:
    path.write_bytes(encode_topics(TopicConfigTable(version, topics)))
    return own_topics(path, timing=agent_timing(VirtualClock()))


@contextmanager
def stub_of(endpoint: Endpoint) -> Iterator[TopicConfigServiceStub]:
    with grpc.insecure_channel(str(endpoint)) as channel:
        yield TopicConfigServiceStub(channel)


def error_of(call: Callable[[], object]) -> RichError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return RichError.of(raised.value)


def as_it_is(_chunk: pb.ListTopicsResponse) -> None:
    """Changes nothing."""


class Agent(TopicConfigServicer):
    """The service of ten topics, and a client of it. Every message of its lists goes through ``mend``."""

    endpoint: Endpoint
    stub: TopicConfigServiceStub

    def __init__(self, manager: TopicConfigManager) -> None:
        super().__init__(manager, lambda: False)
        self.manager = manager
        self.lists = 0
        self.mend: Callable[[pb.ListTopicsResponse], object] = as_it_is

    def ListTopics(  # noqa: N802
        self, request: pb.ListTopicsRequest, context: object
    ) -> Iterator[pb.ListTopicsResponse]:
        self.lists += 1
        for chunk in super().ListTopics(request, context):
            self.mend(chunk)
            yield chunk

    def put(self, topic: pb.TopicConfig, **fields: Any) -> pb.CreateOrUpdateTopicResponse:
        return self.stub.CreateOrUpdateTopic(pb.CreateOrUpdateTopicRequest(topic_config=topic, **fields))

    def chunks(self, **fields: Any) -> list[pb.ListTopicsResponse]:
        return list(self.stub.ListTopics(pb.ListTopicsRequest(**fields)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topics.json"


@pytest.fixture
def topic_owner(path: Path) -> Iterator[Agent]:
    agent = Agent(owned(path, *TOPICS))
    with topic_agent(agent) as agent.endpoint, stub_of(agent.endpoint) as agent.stub:
        yield agent


def test_a_new_topic_has_what_was_said_and_rocketmqs_defaults_for_the_rest(topic_owner: Agent, path: Path) -> None:
    answer = topic_owner.put(pb.TopicConfig(topic="New", read_queue_nums=0), set_attributes={"message.type": "FIFO"})
    expected = TopicConfig("New", 0, 16, 6, attributes={"message.type": "FIFO"})
    assert (answer.created, answer.changed, answer.data_version.counter) == (True, True, 6)
    assert answer.topic_config == topic_owner.stub.GetTopic(pb.GetTopicRequest(topic="New")).topic_config
    config = answer.topic_config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (0, 16, 6)
    assert load_topic_config_table(path).get("New") == expected


def test_absent_fields_and_those_that_the_wire_has_not_stay_as_they_are(topic_owner: Agent) -> None:
    topic_owner.manager.copy((replace(TOPICS[3], unknown={"new": 1}),), VERSION)
    topic_owner.put(pb.TopicConfig(topic="topic-3", order=True, topic_sys_flag=1))
    topic_owner.put(pb.TopicConfig(topic="topic-3", perm=4, topic_filter_type=pb.TOPIC_FILTER_TYPE_MULTI_TAG))
    expected = TopicConfig("topic-3", 3, 3, 4, 1, True, "MULTI_TAG", unknown={"new": 1})
    assert topic_owner.manager.table.get("topic-3") == expected
    answer = topic_owner.put(pb.TopicConfig(topic="topic-3", perm=4))
    assert (answer.created, answer.changed, answer.data_version.counter) == (False, False, 7), "the same again"


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


NUMBERS = ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag", "topic_filter_type")
OUT_OF_RANGE = dict(zip(NUMBERS, (65_536, 65_536, 8, -1, 3), strict=True))


@pytest.mark.parametrize(
    ("topic", "fields"),
    [
        (pb.TopicConfig(), ["topic"]),
        (pb.TopicConfig(topic="T", **OUT_OF_RANGE), NUMBERS),  # type: ignore[arg-type]
        (pb.TopicConfig(topic="T", attributes={"message.type": "FIFO"}), ["attributes"]),
    ],
)
def test_bad_fields_are_named_and_nothing_changes(
    topic_owner: Agent, topic: pb.TopicConfig, fields: Sequence[str]
) -> None:
    error = error_of(lambda: topic_owner.put(topic))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert [violation.field for violation in error.violations] == [f"topic_config.{field}" for field in fields]
    assert topic_owner.manager.table.data_version == VERSION


def test_topics_come_in_order_in_messages_of_limited_size(topic_owner: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    [chunk] = topic_owner.chunks()
    version = chunk.data_version
    assert (version.counter, chunk.topic_count, len(chunk.topic_configs)) == (5, 10, 10)
    [same] = topic_owner.chunks(unless_version=version)
    assert same == pb.ListTopicsResponse(data_version=version, topic_count=10, unchanged=True)
    version.state_version = 0
    [other] = topic_owner.chunks(unless_version=version)
    assert len(other.topic_configs) == 10
    two = 2 * topic_message(TOPICS[0]).ByteSize()
    for size, lengths in ((two, [2, 2, 2, 2, 1, 1]), (two - 1, [1] * 10), (1, [1] * 10)):
        monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", size)
        chunks = topic_owner.chunks()
        assert [len(chunk.topic_configs) for chunk in chunks] == lengths
        assert [config.topic for chunk in chunks for config in chunk.topic_configs] == [
            topic.topic_name for topic in TOPICS
        ]
        assert [(chunk.HasField("data_version"), chunk.topic_count) for chunk in chunks[:2]] == [(True, 10), (False, 0)]


@contextmanager
def unread_lists(path: Path, count: int) -> Iterator[tuple[list[Any], TopicConfigServiceStub]]:
    """Lists of more topics than gRPC buffers, each read up to its first message, and a stub on another connection."""
    topics = tuple(TopicConfig(f"topic-{number}", 1, 1, 6, attributes={"a": "x" * 100_000}) for number in range(100))
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]  # else gRPC buffers much more
    with (
        topic_agent(TopicConfigServicer(owned(path, *topics), lambda: False)) as endpoint,
        grpc.insecure_channel(str(endpoint), options) as channel,
        stub_of(endpoint) as other,
    ):
        lists: list[Any] = [TopicConfigServiceStub(channel).ListTopics(pb.ListTopicsRequest()) for _ in range(count)]
        assert [next(one).topic_count for one in lists] == [100] * count
        yield lists, other


def test_readers_that_take_nothing_hold_up_nobody_and_are_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SLOW_READER_SECONDS", 2.0)
    with capture_logs() as logs, unread_lists(path, listener.THREADS + 1) as (unread, other):
        assert len(list(other.ListTopics(pb.ListTopicsRequest(), timeout=20.0))) > 10
        eventually(lambda: [line["event"] for line in logs].count("slow_reader_cut") == len(unread))
        for one in unread:
            assert error_of(partial(list, one)).reason == "SLOW_READER"


def test_lists_over_the_limit_are_refused_until_another_has_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_TOPIC_LISTS", 3)
    with unread_lists(path, 3) as (unread, other):
        error = error_of(lambda: list(other.ListTopics(pb.ListTopicsRequest())))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
        assert error.metadata["limit"] == "3"
        unread[0].cancel()

        def listed() -> bool:
            with suppress(grpc.RpcError):
                return len(list(other.ListTopics(pb.ListTopicsRequest()))) > 1
            return False

        eventually(listed)


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


# What a slave copies from its master.


class Slave:
    """A slave of the owner of topics, on virtual time."""

    def __init__(self, path: Path, master: Endpoint) -> None:
        self.manager = owned(path, TopicConfig("old", 1, 1, 6), version=DataVersion(1_000, 1))
        self.time = VirtualClock()
        self.master: Endpoint | None = master
        self.connections: list[MasterAgent] = []
        self.sync = SlaveSynchronize(self.manager, lambda: self.master, self._connect, agent_timing(self.time))

    def _connect(self, endpoint: Endpoint) -> MasterAgent:
        self.connections.append(MasterAgent(endpoint))
        return self.connections[-1]

    def names(self) -> list[str]:
        return [topic.topic_name for topic in self.manager.table.topics]


@pytest.fixture
def slave(tmp_path: Path, topic_owner: Agent) -> Iterator[Slave]:
    slave = Slave(tmp_path / "slave.json", topic_owner.endpoint)
    yield slave
    slave.sync.stop()


def test_a_copy_of_many_messages_is_of_one_version_and_durable(
    slave: Slave, topic_owner: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", 1)
    later = count()
    topic_owner.mend = lambda _: put_topic(topic_owner.manager, TopicConfig(f"later-{next(later)}", 1, 1, 6))
    assert slave.sync.synchronize()
    assert slave.manager.table == TopicConfigTable(VERSION, TOPICS)
    assert load_topic_config_table(tmp_path / "slave.json") == slave.manager.table
    topic_owner.mend = as_it_is
    assert slave.sync.synchronize()
    assert slave.names()[10:] == [f"later-{number}" for number in range(10)]
    assert not slave.sync.synchronize(), "the versions are the same"


def test_copies_come_after_3_s_then_every_10_or_so_and_stay_without_master(slave: Slave, topic_owner: Agent) -> None:
    def refuse(_: object) -> NoReturn:
        raise limit_exceeded("lists", 33, 32)

    with capture_logs() as logs:
        slave.sync.start()
        slave.time.run(2.9)
        assert topic_owner.lists == 0
        slave.time.run(0.2)
        assert slave.manager.table.topics == TOPICS
        slave.time.run(1_000)
        assert topic_owner.lists == pytest.approx(100, abs=5)
        before, topic_owner.mend = topic_owner.lists, refuse
        slave.time.run(3_600)
        asked = topic_owner.lists - before
        assert slave.manager.table.topics == TOPICS
        for slave.master in (Endpoint("127.0.0.1", 1), topic_owner.endpoint):
            slave.time.run(100)
        put_topic(topic_owner.manager, TopicConfig("d", 1, 1, 6))
        topic_owner.mend = as_it_is
        slave.time.run(100)
    assert slave.names()[10:] == ["d"]
    assert 3_600 / 60 <= asked <= 3_600 / 30 + 5
    said = [line["event"] for line in logs if line["event"] in ("topics_not_copied", "topics_copied_again")]
    assert said == ["topics_not_copied"] * 3 + ["topics_copied_again"], "once of each master"


def test_another_master_is_another_connection(slave: Slave, topic_owner: Agent, tmp_path: Path) -> None:
    slave.master = None
    assert not slave.sync.synchronize()
    assert slave.connections == []
    slave.master = topic_owner.endpoint
    slave.sync.synchronize()
    slave.sync.synchronize()
    other = owned(tmp_path / "other.json", RICH, version=DataVersion(1_000, 7, 3))
    with topic_agent(TopicConfigServicer(other, lambda: False)) as slave.master:
        slave.sync.synchronize()
    assert slave.manager.table == other.table
    first, _second = slave.connections
    with pytest.raises(CopyFailed, match="closed"):
        next(first.list_topics(pb.ListTopicsRequest()))
    with pytest.raises(CopyFailed, match="UNAVAILABLE"):
        slave.sync.synchronize()
    slave.sync.stop()
    with pytest.raises(CopyFailed, match="closed"):
        slave.sync.synchronize()
    assert slave.manager.table == other.table


def test_a_slave_that_becomes_master_while_it_copies_keeps_its_own_topics(slave: Slave, topic_owner: Agent) -> None:
    topic_owner.mend = lambda _chunk: setattr(slave, "master", None)
    assert not slave.sync.synchronize()
    assert slave.names() == ["old"]


def without_the_first_topic(chunk: pb.ListTopicsResponse) -> None:
    if chunk.topic_count:
        chunk.topic_configs.pop()


def first_topic_with(**fields: Any) -> Callable[[pb.ListTopicsResponse], None]:
    return lambda chunk: chunk.topic_configs[0].MergeFrom(pb.TopicConfig(**fields))


BROKEN = "the master has a topic that breaks a rule:"
LIMITS = slave_synchronize.TABLE_LIMITS


@pytest.mark.parametrize(
    ("mend", "limits", "problem"),
    [
        (lambda chunk: chunk.ClearField("data_version"), LIMITS, "the master's answer has no version of its table"),
        (first_topic_with(perm=8), LIMITS, f"{BROKEN} topic 'topic-0'.perm: is 8, must be from 0 to 7"),
        (first_topic_with(topic="a\tb"), LIMITS, f"{BROKEN} topic: .* has characters"),
        (without_the_first_topic, LIMITS, "the master says that it has 10 topics, and listed 9"),
        (as_it_is, ResponseLimits(bytes=1 << 20, rows=2), "the master's table has 3 rows so far"),
        (as_it_is, ResponseLimits(bytes=50, rows=100), r"the master's table has \d+ bytes so far"),
    ],
)
def test_a_table_that_is_not_whole_and_good_or_too_large_is_not_taken(
    slave: Slave,
    topic_owner: Agent,
    monkeypatch: pytest.MonkeyPatch,
    mend: Callable[[pb.ListTopicsResponse], None],
    limits: ResponseLimits,
    problem: str,
) -> None:
    monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", 1)
    monkeypatch.setattr(slave_synchronize, "TABLE_LIMITS", limits)
    topic_owner.mend = mend
    with pytest.raises(CopyFailed, match=f"^{problem}"):
        slave.sync.synchronize()
    assert slave.names() == ["old"]


@pytest.mark.parametrize(
    ("given", "master_addr", "expected"),
    [
        ({}, "10.0.0.2:10911", Endpoint("10.0.0.2", 7)),
        ({}, "[::1]:10911", Endpoint("::1", 7)),
        ({"listen": None}, "10.0.0.2:20911", Endpoint("10.0.0.2", 20918)),
        ({"listen": None, "fast_listen": "0.0.0.0:7"}, "10.0.0.2:20911", Endpoint("10.0.0.2", 7)),
        ({"master_agent": "10.0.0.2:10918"}, "10.0.0.3:10911", Endpoint("10.0.0.2", 10918)),
        ({"master_agent": "10.0.0.2:10918"}, "10.0.0.1:10911", None),
        ({}, "no address", None),
    ],
)
def test_the_masters_agent_is_where_the_setting_says_or_beside_the_master(
    given: dict[str, Any], master_addr: str, expected: Endpoint | None
) -> None:
    assert settings_of(**given).agent_of_master(master_addr, own_port=7) == expected
