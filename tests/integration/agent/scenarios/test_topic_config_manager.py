"""RocketMQ's broker scenarios 67 and 77: DataVersion, and TopicConfigManager with attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub

from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion
from broker_agent.topics.topic_service import TopicConfigServicer
from broker_agent.topics.topics_json import load_topic_config_table
from tests.support.agents.topic_agents import stub_of, topic_agent


def test_scenario_67_versions_are_equal_only_if_all_their_parts_are() -> None:
    version = DataVersion(1_000, 1, 0)
    assert copy(version) == version
    assert version != DataVersion(1_000, 2, 0)
    assert version != DataVersion(1_001, 1, 0)
    assert version != DataVersion(1_000, 1, 1)


@dataclass
class Broker:
    path: Path
    manager: TopicConfigManager
    stub: TopicConfigServiceStub

    def put(self, to_set: Mapping[str, str], to_delete: Sequence[str] = ()) -> Mapping[str, str]:
        topic = pb.TopicConfig(topic="TopicTest")
        request = pb.CreateOrUpdateTopicRequest(topic_config=topic, set_attributes=to_set, delete_attributes=to_delete)
        return self.stub.CreateOrUpdateTopic(request).topic_config.attributes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    manager = TopicConfigManager.own(tmp_path / "topics.json", ())
    with topic_agent(TopicConfigServicer(manager, lambda: False)) as endpoint, stub_of(endpoint) as stub:
        yield Broker(tmp_path / "topics.json", manager, stub)


def test_scenario_77_attributes_are_made_changed_and_deleted_and_survive_a_restart(broker: Broker) -> None:
    assert broker.put({"queue.type": "BatchCQ", "message.type": "NORMAL"}) == {
        "queue.type": "BatchCQ",
        "message.type": "NORMAL",
    }
    assert broker.put({"message.type": "FIFO"}) == {"queue.type": "BatchCQ", "message.type": "FIFO"}
    assert broker.put({}, ["message.type"]) == {"queue.type": "BatchCQ"}
    assert load_topic_config_table(broker.path) == broker.manager.table
    assert TopicConfigManager.own(broker.path, ()).table == broker.manager.table
