"""Scenarios of upstream's RouteInfoManagerNewTest. The fixture lets a slave stand in for a lost master."""

from __future__ import annotations

import pytest

from namesrv.core.errors import Reason
from namesrv.core.model import ORDER_TOPIC_CONFIG, DataVersion, KvConfigTable, RemovalReason, ReportedTopic
from namesrv.core.operator_changes import publish_kv_config
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet, addrs_of
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import (
    BASE_TOPIC,
    GROUP,
    OTHER_CLUSTER,
    TEST,
    ReplicatedFleet,
    all_topics,
    delete_topic,
    is_writable,
    known_route,
    names,
    perms,
    version,
    wipe,
)

ORDERED: list[tuple[str, ReportedTopic]] = [
    ("broker-a:4", ("TopicTest", (4, 4, 6, 0))),
    ("broker-a:1", ("TopicTest", (1, 1, 6, 0))),
]
"""An ordered topic, per broker and global: what its order configuration is, and its queues."""


@pytest.fixture
def fleet() -> ReplicatedFleet:
    return ReplicatedFleet()


@pytest.fixture
def not_acting() -> ReplicatedFleet:
    return ReplicatedFleet(acting=False)


@pytest.fixture
def exact() -> ReplicatedFleet:
    return ReplicatedFleet(delete_topic_with_broker_registration=True)


def test_brokers_of_two_clusters_are_listed_with_their_clusters(fleet: ReplicatedFleet) -> None:
    """Scenario 1."""
    fleet.master()
    fleet.register(B, cluster=OTHER_CLUSTER, name="broker-b")
    tables = fleet.state.tables
    assert fleet.state.index.cluster_addr_table == {CLUSTER: {"broker-a"}, OTHER_CLUSTER: {"broker-b"}}
    assert {key.broker_name: dict(group.addrs) for key, group in tables.broker_addr_table.items()} == {
        "broker-a": {0: A},
        "broker-b": {0: B},
    }


def test_a_deleted_topic_has_no_route(fleet: ReplicatedFleet) -> None:
    """Scenario 2."""
    fleet.master("TopicTest")
    delete_topic(fleet, "TopicTest")
    assert fleet.route("TopicTest") is None
    assert fleet.route(BASE_TOPIC) is not None


def test_a_topic_that_is_deleted_in_one_cluster_stays_in_the_other(fleet: ReplicatedFleet) -> None:
    """Scenario 3."""
    fleet.master("TopicTest")
    fleet.register(B, name="broker-b", cluster=OTHER_CLUSTER)
    assert names(fleet) == ["broker-a", "broker-b"]
    delete_topic(fleet, "TopicTest", CLUSTER)
    assert names(fleet) == ["broker-b"]


def test_the_list_of_all_topics_is_empty_at_first_and_has_what_is_registered(fleet: ReplicatedFleet) -> None:
    """Scenario 4."""
    assert all_topics(fleet) == []
    fleet.master("T1", "T2")
    assert all_topics(fleet) == ["T1", "T2", BASE_TOPIC]


def test_a_master_is_told_no_master_and_its_slave_is_told_it(fleet: ReplicatedFleet) -> None:
    """Scenarios 5 and 6."""
    master = fleet.master()
    assert (master.ha_server_addr, master.master_addr) == (None, None)
    slave = fleet.slave()
    assert (slave.ha_server_addr, slave.master_addr) == (HA, A)


def test_the_topics_of_the_only_broker_go_when_it_unregisters(fleet: ReplicatedFleet) -> None:
    """Scenarios 7 and 8. Nothing is queued here: the answer comes after the effect."""
    fleet.master("T1", "T2")
    fleet.unregister(A)
    assert [fleet.route(topic) for topic in ("T1", "T2", BASE_TOPIC)] == [None] * 3


def test_a_slave_joins_its_masters_addresses(fleet: ReplicatedFleet) -> None:
    """Scenario 9."""
    fleet.master("TopicTest")
    assert fleet.addrs() == {0: A}
    fleet.slave("TopicTest")
    assert fleet.addrs() == {0: A, 1: B}


def test_a_topic_that_the_master_adds_has_the_slaves_address_too(fleet: ReplicatedFleet) -> None:
    """Scenario 10."""
    fleet.master("T")
    fleet.slave("T")
    fleet.master("T", "T1", version=version(2))
    assert fleet.addrs("T1") == {0: A, 1: B}


@pytest.mark.parametrize("leaves_by", ["unregistration", "end of its channel"])
def test_master_and_slave_change_roles(not_acting: ReplicatedFleet, leaves_by: str) -> None:
    """Scenarios 11, 12, 13 and, where the master's channel ends, 32."""
    fleet = not_acting
    channel_id = fleet.state.open_channel()
    fleet.register(A, channel_id=channel_id, ha=HA, enable_acting_master=False)
    fleet.slave("TopicTest")
    if leaves_by == "unregistration":
        fleet.unregister(A)
    else:
        fleet.end_channel(channel_id)
    assert fleet.addrs() == {1: B}
    fleet.register(B, 0, version=version(2), enable_acting_master=False)
    assert fleet.addrs() == {0: B}
    fleet.register(A, 1, version=version(3), enable_acting_master=False)
    assert fleet.addrs() == {0: B, 1: A}


def test_a_slave_that_unregisters_leaves_its_master(fleet: ReplicatedFleet) -> None:
    """Scenario 14."""
    fleet.master("TopicTest")
    fleet.slave("TopicTest")
    fleet.unregister(B)
    assert names(fleet) == ["broker-a"]
    assert fleet.addrs() == {0: A}


def test_a_slave_stands_in_for_a_lost_master_for_reading(fleet: ReplicatedFleet) -> None:
    """Scenario 15. The permission that the group reported is shown next to the one in force."""
    fleet.master("TopicTest")
    fleet.slave("TopicTest")
    fleet.unregister(A)
    assert fleet.addrs() == {0: B}
    assert perms(fleet) == [4]
    assert known_route(fleet).queue_datas[0].reported_perm == 6


@pytest.mark.parametrize("who_says_no", ["the group", "the name server"])
def test_without_acting_master_a_lost_master_leaves_its_slave_a_slave(who_says_no: str) -> None:
    """Scenario 16."""
    fleet: Fleet = ReplicatedFleet(acting=False) if who_says_no == "the group" else Fleet()
    for broker_id, addr in enumerate((A, B)):
        fleet.register(addr, broker_id, enable_acting_master=who_says_no == "the name server")
    fleet.unregister(A)
    assert fleet.addrs() == {1: B}
    assert perms(fleet) == [6]


def test_two_masters_that_unregister_leave_no_route(fleet: ReplicatedFleet) -> None:
    """Scenario 17."""
    fleet.master("T1")
    fleet.master("T2", addr=B, name="broker-b")
    fleet.unregister(A)
    fleet.unregister(B, name="broker-b")
    assert (fleet.route("T1"), fleet.route("T2")) == (None, None)


def test_a_version_is_changed_if_its_timestamp_or_counter_is_another(fleet: ReplicatedFleet) -> None:
    """Scenarios 18 and 20."""
    fleet.master()
    assert fleet.query(version=VERSION) == (False, VERSION)
    assert fleet.query(version=DataVersion(VERSION.timestamp_millis + 1_000, VERSION.counter)) == (True, VERSION)
    assert fleet.query(version=DataVersion(VERSION.timestamp_millis, VERSION.counter + 1)) == (True, VERSION)


def test_a_topic_that_comes_without_a_new_version_is_not_taken(fleet: ReplicatedFleet) -> None:
    """Scenario 19, decided otherwise: an equal version means equal topics, so it changes none."""
    assert fleet.query() == (True, None)
    fleet.master("TopicTest")
    assert fleet.query() == (False, VERSION)
    fleet.master("TopicTest", "sneaked-in")
    assert fleet.route("sneaked-in") is None
    fleet.master("TopicTest", "sneaked-in", version=version(2))
    assert fleet.route("sneaked-in") is not None


def test_a_wipe_takes_the_write_permission(fleet: ReplicatedFleet) -> None:
    """Scenario 21."""
    fleet.master("TopicTest")
    assert perms(fleet) == [6]
    wipe(fleet)
    assert perms(fleet) == [4]


def test_a_route_has_queues_and_addresses_of_each_broker(fleet: ReplicatedFleet) -> None:
    """Scenario 22."""
    fleet.master(("TopicTest", (8, 8, 6, 0)))
    (queue,) = known_route(fleet).queue_datas
    assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (8, 8, 6)
    fleet.master("TopicTest", addr=B, name="broker-b")
    assert names(fleet) == ["broker-a", "broker-b"]


def test_a_group_is_writable_again_once_its_master_is_back(fleet: ReplicatedFleet) -> None:
    """Scenario 23."""
    fleet.master("TopicTest")
    fleet.slave("TopicTest")
    assert (len(fleet.addrs()), is_writable(fleet)) == (2, True)
    fleet.unregister(A)
    assert (len(fleet.addrs()), is_writable(fleet)) == (1, False)
    fleet.master("TopicTest")
    assert (len(fleet.addrs()), is_writable(fleet)) == (2, True)


@pytest.mark.parametrize(("order_topic_conf", "topic"), ORDERED)
@pytest.mark.parametrize("master_came", [False, True])
def test_an_ordered_topic_without_its_master_is_read_from_the_slave(
    order_topic_conf: str, topic: ReportedTopic, master_came: bool
) -> None:
    """Scenarios 24, 25 and, for a global order, 27."""
    fleet = ReplicatedFleet(order_message_enable=True)
    table = KvConfigTable.of({ORDER_TOPIC_CONFIG: {"TopicTest": order_topic_conf}})
    publish_kv_config(fleet.state, table, TEST)
    fleet.slave(topic)
    if master_came:
        fleet.master(topic)
        assert is_writable(fleet)
        fleet.unregister(A)
    assert fleet.addrs() == {0: B}
    assert not is_writable(fleet)
    assert known_route(fleet).order_topic_conf == order_topic_conf


def test_the_loss_of_one_groups_master_leaves_the_other_group_as_it_is(fleet: ReplicatedFleet) -> None:
    """Scenario 26."""
    c, d = "127.0.0.1:30911", "127.0.0.1:40911"
    fleet.master("TopicTest")
    fleet.slave("TopicTest")
    fleet.master("TopicTest", addr=c, name="broker-y")
    fleet.slave("TopicTest", addr=d, name="broker-y")
    fleet.unregister(A)
    assert names(fleet) == ["broker-a", "broker-y"]
    assert [addrs_of(group) for group in known_route(fleet).broker_datas] == [{0: B}, {0: c, 1: d}]
    assert perms(fleet) == [4, 6]


def test_a_slave_alone_makes_a_route_that_cannot_be_written(fleet: ReplicatedFleet) -> None:
    """Scenario 28."""
    fleet.slave("TopicTest")
    assert not is_writable(fleet)
    fleet.master("TopicTest")
    assert is_writable(fleet)
    fleet.unregister(A)
    assert not is_writable(fleet)
    fleet.master("TopicTest")
    assert is_writable(fleet)


def test_the_topics_of_the_only_broker_go_with_its_channel(fleet: ReplicatedFleet) -> None:
    """Scenarios 29 and 31. Upstream's form of it by address has no counterpart: a channel is known by its id alone."""
    channel_id = fleet.state.open_channel()
    fleet.register(topics=("T1", "T2"), channel_id=channel_id)
    assert [gone.reason for gone in fleet.end_channel(channel_id)] == [RemovalReason.CHANNEL_CLOSED]
    assert all_topics(fleet) == []


def test_master_and_slave_go_with_their_own_channels(not_acting: ReplicatedFleet) -> None:
    """Scenario 30."""
    fleet = not_acting
    masters, slaves = fleet.state.open_channel(), fleet.state.open_channel()
    fleet.register(A, channel_id=masters)
    fleet.register(B, 1, channel_id=slaves)
    fleet.end_channel(masters)
    assert fleet.addrs() == {1: B}
    fleet.end_channel(slaves)
    assert fleet.route() is None


def test_a_topic_that_is_missing_from_the_next_registration_stays(fleet: ReplicatedFleet) -> None:
    """Scenario 33."""
    fleet.master("T", "T1")
    fleet.master("T", version=version(2))
    assert all_topics(fleet) == ["T", "T1", BASE_TOPIC]


def test_a_topic_that_is_missing_from_the_next_registration_goes_if_registrations_delete(
    exact: ReplicatedFleet,
) -> None:
    """Scenario 34."""
    exact.master("T", "T1")
    exact.master("T", version=version(2))
    assert all_topics(exact) == ["T", BASE_TOPIC]


def test_a_topic_goes_with_the_last_broker_whose_registration_lacks_it(exact: ReplicatedFleet) -> None:
    """Scenario 35."""
    exact.master("T", "T1")
    exact.master("T", "T1", addr=B, name="broker-b")
    exact.master("T1", version=version(2))
    assert names(exact, "T") == ["broker-b"]
    exact.master("T1", addr=B, name="broker-b", version=version(2))
    assert exact.route("T") is None
    assert names(exact, "T1") == ["broker-a", "broker-b"]


def test_a_topic_registered_by_itself_lives_as_long_as_registrations_have_it(exact: ReplicatedFleet) -> None:
    """Scenario 36. For a group that is not registered the call is refused, where upstream answers success."""
    queues = {GROUP: (4, 4, 6, 0)}
    with refuses(Reason.BROKER_NOT_REGISTERED):
        exact.register_topic("T", queues)
    assert exact.route("T") is None
    exact.master()
    exact.register_topic("T", queues)
    exact.master("T", version=version(2))
    assert names(exact, "T") == ["broker-a"]
    exact.master(version=version(3))
    assert exact.route("T") is None
    exact.register_topic("T", queues)
    exact.unregister(A)
    assert all_topics(exact) == []


def test_a_scan_removes_a_broker_only_after_its_own_timeout(fleet: ReplicatedFleet) -> None:
    """Scenario 37. Exactly the timeout is not too long."""
    fleet.register(timeout_seconds=30.0)
    assert fleet.scan() == []
    fleet.clock.advance(30.0)
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert [gone.reason for gone in fleet.scan()] == [RemovalReason.EXPIRED]
    assert fleet.route() is None
