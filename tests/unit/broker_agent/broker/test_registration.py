from __future__ import annotations

from collections.abc import Callable

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from broker_agent.registration import BrokerState, Registration
from broker_agent.settings import AgentSettings
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, TopicQueueMapping

TABLE = TopicConfigTable(
    DataVersion(timestamp_millis=5, counter=0),
    (TopicConfig("normal", 4, 8, 6, 1), TopicConfig("read-only", 1, 1, 4, 0), TopicConfig("inherit", 1, 1, 7, 0)),
)


def registration_of(settings: AgentSettings, table: TopicConfigTable) -> pb.RegisterBrokerRequest:
    return Registration(BrokerState.of(settings), table).full()


def test_a_registration_carries_the_broker_and_the_whole_table(settings: Callable[..., AgentSettings]) -> None:
    request = registration_of(settings(broker_id=2, cluster="C", ha_server_addr="10.0.0.1:10912"), TABLE)
    assert (request.broker.cluster_name, request.broker.broker_name) == ("C", "broker-a")
    assert (request.broker.broker_id, request.broker.broker_addr) == (2, "10.0.0.1:10911")
    assert request.ha_server_addr == "10.0.0.1:10912"
    first = request.topic_configs[0]
    assert (first.topic, first.read_queue_nums, first.write_queue_nums) == ("normal", 4, 8)
    assert (first.perm, first.topic_sys_flag) == (6, 1)


def test_zero_is_said_and_absence_is_kept(settings: Callable[..., AgentSettings]) -> None:
    request = registration_of(settings(), TABLE)
    assert request.broker.HasField("broker_id")
    assert request.data_version.HasField("counter")
    assert not request.data_version.HasField("state_version")
    assert not request.HasField("ha_server_addr")
    assert not request.HasField("filter_servers")
    assert not request.HasField("channel_id")


@pytest.mark.parametrize(
    ("broker_permission", "perms"),
    [(6, [6, 4, 7]), (7, [6, 4, 7]), (4, [4, 4, 4]), (2, [2, 0, 2]), (5, [4, 4, 5]), (0, [0, 0, 0])],
)
def test_a_broker_that_lacks_a_permission_masks_those_of_its_topics(
    settings: Callable[..., AgentSettings], broker_permission: int, perms: list[int]
) -> None:
    request = registration_of(settings(broker_permission=broker_permission), TABLE)
    assert [topic.perm for topic in request.topic_configs] == perms
    assert request.topic_configs[0].topic_sys_flag == 1


def test_a_static_topic_is_registered_with_its_mapping(settings: Callable[..., AgentSettings]) -> None:
    static, ordinary = registration_of(settings(), mapped_table(5, ((0, 1), (3, 0)))).topic_configs
    assert (static.mapping.scope, static.mapping.total_queue_nums, static.mapping.epoch) == ("__global__", 4, 9)
    assert list(static.mapping.topic_queue_ids) == [0, 3]
    assert list(static.mapping.broker_queue_ids) == [1, 0]
    assert static.mapping.dirty
    assert not ordinary.HasField("mapping")


def mapped_table(counter: int, queue_ids: tuple[tuple[int, int], ...]) -> TopicConfigTable:
    mapping = TopicQueueMapping("__global__", 4, 9, is_dirty=True, queue_ids=queue_ids)
    topics = (TopicConfig("static", 4, 4, 6, mapping=mapping), TopicConfig("ordinary", 4, 4, 6))
    return TopicConfigTable(DataVersion(1_000, counter), topics)
