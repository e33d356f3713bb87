"""Scenarios of upstream's RouteInfoManagerTest, BrokerRegisterTest, BrokerPermTest and StaticRegisterTest."""

from __future__ import annotations

import pytest

from namesrv.core.lists import UNIT, UNIT_SUB
from namesrv.core.model import LiveKey, ReportedTopic
from tests.support.core_fleet import CLUSTER, VERSION, A, Fleet, addrs_of
from tests.unit.namesrv.scenarios.groups import (
    GROUP,
    OTHER_CLUSTER,
    add,
    all_topics,
    delete_topic,
    known_route,
    names,
    perms,
    version,
    wipe,
)

NAMES = ("broker-0", "broker-1", "broker-2")
TOPICS: list[ReportedTopic] = [(f"topic-{number}", (number + 1, number + 2, 6, number % 4)) for number in range(10)]


def addr_of(name: str, broker_id: int) -> str:
    return f"10.0.{name[-1]}.{broker_id}:10911"


@pytest.fixture
def static() -> Fleet:
    """Three groups of three brokers with ten topics each."""
    fleet = Fleet()
    for name in NAMES:
        for broker_id in range(3):
            fleet.register(addr_of(name, broker_id), broker_id, TOPICS, name=name)
    return fleet


def test_one_address_in_two_clusters_is_two_brokers_with_a_version_each(fleet: Fleet) -> None:
    """Scenario 38."""
    fleet.register(A)
    fleet.register(A, cluster=OTHER_CLUSTER, version=version(2))
    live = fleet.state.tables.broker_live_table
    here, there = LiveKey(CLUSTER, A), LiveKey(OTHER_CLUSTER, A)
    assert (live[here].data_version, live[there].data_version) == (VERSION, version(2))
    fleet.unregister(A, cluster=OTHER_CLUSTER)
    assert set(fleet.state.tables.broker_live_table) == {here}


def test_wipe_and_add_count_the_groups_topics_whether_or_not_they_change_them(fleet: Fleet) -> None:
    """Scenario 39."""
    fleet.register(A)
    assert fleet.state.topic_count(GROUP) == 1
    assert wipe(fleet).blast_radius.topics_losing_last_writable_queue == 1
    assert perms(fleet) == [4]
    assert add(fleet).blast_radius.topics_changed == 1
    assert perms(fleet) == [6]
    wipe(fleet)
    assert wipe(fleet).blast_radius.topics_changed == 0
    assert perms(fleet) == [4]
    assert fleet.state.topic_count(GROUP) == 1


def test_add_gives_write_permission_to_a_group_that_reports_none_and_nothing_else(fleet: Fleet) -> None:
    """Scenario 39. Upstream sets the permission to exactly 6, so that reading comes back too and inheriting goes."""
    fleet.register(topics=[("readable", (4, 4, 4, 0)), ("closed", (4, 4, 0, 0)), ("inheriting", (4, 4, 5, 0))])
    add(fleet)
    assert [perms(fleet, topic) for topic in ("readable", "closed", "inheriting")] == [[6], [2], [7]]


def test_an_unknown_topic_has_no_route(fleet: Fleet) -> None:
    """Scenario 40."""
    assert fleet.route("unknown") is None


def test_a_slave_that_registers_as_master_is_the_master(static: Fleet) -> None:
    """Scenario 41. The master before it has lost its place and has left all tables."""
    promoted = addr_of("broker-0", 1)
    static.register(promoted, 0, TOPICS, name="broker-0")
    assert static.addrs("topic-0") == {0: promoted, 2: addr_of("broker-0", 2)}
    assert LiveKey(CLUSTER, addr_of("broker-0", 0)) not in static.state.tables.broker_live_table


def test_a_group_lacks_a_broker_that_unregistered(static: Fleet) -> None:
    """Scenario 42."""
    static.unregister(addr_of("broker-0", 2), name="broker-0")
    assert static.addrs("topic-0").keys() == {0, 1}


def test_clusters_groups_and_queues_are_those_that_were_registered(static: Fleet) -> None:
    """Scenario 43: cluster info and routes."""
    assert static.state.index.cluster_addr_table == {CLUSTER: set(NAMES)}
    for topic, numbers in TOPICS:
        assert names(static, topic) == list(NAMES)
        route = known_route(static, topic)
        for group in route.broker_datas:
            assert addrs_of(group) == {broker_id: addr_of(group.broker_name, broker_id) for broker_id in range(3)}
        for queue in route.queue_datas:
            shown = queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag
            assert shown == numbers


def test_the_lists_have_the_topics_that_were_registered(static: Fleet) -> None:
    """Scenario 43: lists, and a topic that is deleted."""
    lists, topics = static.state.topic_lists, [topic for topic, _ in TOPICS]
    assert all_topics(static) == topics
    assert lists.of_cluster(CLUSTER)("", 100) == topics
    assert lists.system()("", 100) == sorted((CLUSTER, *NAMES))
    assert lists.with_flags(UNIT, 0)("", 100) == topics[1::2]
    assert lists.with_flags(UNIT_SUB, 0)("", 100) == sorted(topics[2::4] + topics[3::4])
    assert lists.with_flags(UNIT_SUB, UNIT)("", 100) == topics[2::4]
    delete_topic(static, "topic-0")
    assert static.route("topic-0") is None
    assert all_topics(static) == topics[1:]
