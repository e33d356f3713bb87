from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent.timing import Timing
from broker_agent.topics import slave_synchronize, topic_service
from broker_agent.topics.files import load_topic_config_table
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.slave_synchronize import CopyFailed, MasterAgent, SlaveSynchronize
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.client.channels import ResponseLimits
from namesrv_common.endpoints import Endpoint
from tests.support.agents import MakeSettings, own_topics, put_topic, topic_agent
from tests.support.virtual_clock import VirtualClock, agent_timing

HERE, ELSEWHERE = Endpoint("10.0.0.1", 10918), Endpoint("10.0.0.2", 10918)


def topics(*names: str) -> tuple[TopicConfig, ...]:
    return tuple(TopicConfig(name, 4, 4, 6, order=True, attributes={"message.type": "FIFO"}) for name in names)


def owned(path: Path, *names: str, counter: int = 1) -> TopicConfigManager:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_topics(TopicConfigTable(DataVersion(1_000, counter, 0), topics(*names))))
    return own_topics(path, timing=agent_timing(VirtualClock()))


class FakeMaster(MasterAgent):
    """The agent of a master with three topics as the slave sees it; every message goes through ``mend``."""

    def __init__(self, path: Path) -> None:
        self.topics = owned(path / "master" / "topics.json", "a", "b", "c", counter=7)
        self._servicer = TopicConfigServicer(self.topics, lambda: False)
        self.requests: list[pb.ListTopicsRequest] = []
        self.away = False
        self.closed = 0
        self.mend: Callable[[pb.ListTopicsResponse], object] = lambda _chunk: None

    def list_topics(self, request: pb.ListTopicsRequest) -> Generator[pb.ListTopicsResponse, None, None]:
        self.requests.append(request)
        if self.away:
            raise CopyFailed("UNAVAILABLE: connection refused")
        for chunk in self._servicer.ListTopics(request, None):
            self.mend(chunk)
            yield chunk

    def close(self) -> None:
        self.closed += 1


class Slave:
    """A slave of the fake master on virtual time."""

    def __init__(self, path: Path) -> None:
        self.master = FakeMaster(path)
        self.manager = owned(path / "slave" / "topics.json", "old")
        self.time = VirtualClock()
        self.endpoint: Endpoint | None = HERE
        self.connected_to: list[Endpoint] = []
        self.sync = SlaveSynchronize(self.manager, lambda: self.endpoint, self._connect, agent_timing(self.time))

    def _connect(self, endpoint: Endpoint) -> FakeMaster:
        self.connected_to.append(endpoint)
        return self.master

    def names(self) -> list[str]:
        return [topic.topic_name for topic in self.manager.table.topics]


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    slave = Slave(tmp_path)
    yield slave
    slave.sync.stop()


def test_copied_topics_are_whole_and_durable(slave: Slave, tmp_path: Path) -> None:
    assert slave.sync.synchronize()
    assert slave.manager.table.topics == slave.master.topics.table.topics
    assert slave.manager.table.data_version == DataVersion(1_000, 7, 0)
    assert load_topic_config_table(tmp_path / "slave" / "topics.json") == slave.manager.table
    assert not slave.sync.synchronize(), "the versions are the same"


def test_a_table_of_many_messages_is_copied_as_one(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", 1)
    master, later = slave.master, iter(range(10))
    master.mend = lambda _chunk: put_topic(master.topics, TopicConfig(f"later-{next(later)}", 1, 1, 6))
    assert slave.sync.synchronize()
    assert slave.names() == ["a", "b", "c"]
    assert slave.manager.table.data_version.counter == 7
    assert slave.sync.synchronize()
    assert slave.names()[3:] == ["later-0", "later-1", "later-2"]


def test_copies_come_after_3_s_then_every_10_or_so_and_stay_without_master(slave: Slave) -> None:
    master = slave.master
    with capture_logs() as logs:
        slave.sync.start()
        slave.time.run(2.9)
        assert master.requests == []
        slave.time.run(0.2)
        assert slave.names() == ["a", "b", "c"]
        slave.time.run(1_000)
        assert len(master.requests) == pytest.approx(100, abs=5)
        master.requests.clear()
        master.away = True
        slave.time.run(3_600)
        asked = len(master.requests)
        assert slave.names() == ["a", "b", "c"]
        put_topic(master.topics, TopicConfig("d", 1, 1, 6))
        master.away = False
        slave.time.run(61)
    assert slave.names() == ["a", "b", "c", "d"]
    assert 3_600 / 60 <= asked <= 3_600 / 30 + 5
    said = [line["event"] for line in logs if line["event"].startswith("topics_not_copied")]
    assert said == ["topics_not_copied"]
    assert "topics_copied_again" in [line["event"] for line in logs]


def test_another_master_is_another_connection(slave: Slave) -> None:
    slave.endpoint = None
    assert not slave.sync.synchronize()
    assert slave.connected_to == []
    slave.endpoint = HERE
    slave.sync.synchronize()
    slave.sync.synchronize()
    slave.endpoint = ELSEWHERE
    slave.sync.synchronize()
    assert (slave.connected_to, slave.master.closed) == ([HERE, ELSEWHERE], 1)


def test_a_slave_that_becomes_master_while_it_copies_keeps_its_own_topics(slave: Slave) -> None:
    def promote(_chunk: pb.ListTopicsResponse) -> None:
        slave.endpoint = None

    slave.master.mend = promote
    assert not slave.sync.synchronize()
    assert slave.names() == ["old"]


def first_topic_with(**fields: Any) -> Callable[[pb.ListTopicsResponse], None]:
    return lambda chunk: chunk.topic_configs[0].MergeFrom(pb.TopicConfig(**fields))


BROKEN = "the master has a topic that breaks a rule:"


@pytest.mark.parametrize(
    ("mend", "problem"),
    [
        (lambda chunk: chunk.ClearField("data_version"), "the master's answer has no version of its table"),
        (first_topic_with(perm=8), f"{BROKEN} topic 'a'.perm: is 8, must be from 0 to 7"),
        (first_topic_with(topic="a\tb"), f"{BROKEN} topic: .* has characters"),
        (lambda chunk: chunk.topic_configs.pop(), "the master says that it has 3 topics, and listed 2"),
    ],
)
def test_a_table_that_is_not_whole_and_good_is_not_taken(
    slave: Slave, mend: Callable[[pb.ListTopicsResponse], None], problem: str
) -> None:
    slave.master.mend = mend
    with pytest.raises(CopyFailed, match=problem):
        slave.sync.synchronize()
    assert slave.names() == ["old"]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (ResponseLimits(bytes=1 << 20, rows=2), "the master's table has 3 rows so far"),
        (ResponseLimits(bytes=50, rows=100), r"the master's table has \d+ bytes so far"),
    ],
)
def test_a_master_that_sends_too_much_is_given_up_and_the_last_copy_stays(
    slave: Slave, limits: ResponseLimits, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_service, "MAX_CHUNK_BYTES", 1)
    monkeypatch.setattr(slave_synchronize, "TABLE_LIMITS", limits)
    with pytest.raises(CopyFailed, match=f"^{problem}"):
        slave.sync.synchronize()
    assert slave.names() == ["old"]


def test_topics_come_over_a_real_connection(tmp_path: Path) -> None:
    manager = owned(tmp_path / "slave.json", "old")
    master_topics = owned(tmp_path / "master.json", "a", "b", counter=7)
    endpoints: list[Endpoint] = []
    sync = SlaveSynchronize(manager, lambda: endpoints[0], MasterAgent, Timing())
    with topic_agent(TopicConfigServicer(master_topics, lambda: False)) as endpoint:
        endpoints.append(endpoint)
        assert sync.synchronize()
        assert manager.table.topics == master_topics.table.topics
    with pytest.raises(CopyFailed, match="UNAVAILABLE"):
        sync.synchronize()
    sync.stop()
    with pytest.raises(CopyFailed, match="closed"):
        sync.synchronize()
    assert manager.table.topics == master_topics.table.topics


@pytest.mark.parametrize(
    ("given", "master_addr", "expected"),
    [
        ({}, "10.0.0.2:10911", Endpoint("10.0.0.2", 7)),
        ({}, "[::1]:10911", Endpoint("::1", 7)),
        ({"listen": None}, "10.0.0.2:20911", Endpoint("10.0.0.2", 20918)),
        ({"listen": None, "fast_listen": "0.0.0.0:7"}, "10.0.0.2:20911", Endpoint("10.0.0.2", 7)),
        ({"master_agent": str(ELSEWHERE)}, "10.0.0.3:10911", ELSEWHERE),
        ({"master_agent": str(ELSEWHERE)}, "10.0.0.1:10911", None),
        ({}, "no address", None),
    ],
)
def test_the_masters_agent_is_where_the_setting_says_or_beside_the_master(
    settings: MakeSettings, given: dict[str, Any], master_addr: str, expected: Endpoint | None
) -> None:
    assert settings(**given).agent_of_master(master_addr, own_port=7) == expected
