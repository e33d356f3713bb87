"""RouteInfoManager: RocketMQ 4's behaviour, and upstream's bugs that must not be here.

Numbers in brackets are the acceptance scenarios that upstream's own tests show.
"""

from __future__ import annotations

import pytest

from namesrv.app.worker import GivenUp
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, DataVersion, LiveKey, Registration, RemovalReason
from namesrv.core.pace import FEW
from namesrv.core.registrations import BrokerRegistration
from tests.support.breaths import AtBreath, breathing, give_up
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet, addrs_of
from tests.support.refusals import refuses

NEXT_VERSION = DataVersion(2_000, 2)


def test_brokers_of_two_clusters_are_listed_under_both(fleet: Fleet) -> None:  # [1]
    fleet.register(A)
    fleet.register(B, cluster="other-cluster", name="broker-b")
    assert fleet.state.tables.cluster_addr_table == {CLUSTER: {"broker-a"}, "other-cluster": {"broker-b"}}
    assert {group.addrs[0] for group in fleet.state.tables.broker_addr_table.values()} == {A, B}


def test_a_registered_master_is_told_no_master_and_no_ha_address(fleet: Fleet) -> None:  # [5]
    result = fleet.register(A, ha=HA)
    assert (result.ha_server_addr, result.master_addr) == (None, None)


def test_a_slave_is_told_its_masters_address_and_ha_address(fleet: Fleet) -> None:  # [6]
    fleet.register(A, ha=HA)
    result = fleet.register(B, 1)
    assert (result.ha_server_addr, result.master_addr) == (HA, A)


def test_a_slave_without_a_live_master_is_told_nothing(fleet: Fleet) -> None:
    result = fleet.register(B, 1)
    assert (result.ha_server_addr, result.master_addr) == (None, None)


def test_the_last_broker_takes_its_topics_with_it(fleet: Fleet) -> None:  # [7]
    fleet.register(topics=("t1", "t2", "t3"))
    removed = fleet.unregister()
    assert removed is not None
    assert removed.group_gone
    assert removed.topics_removed == 3
    assert [fleet.route(topic) for topic in ("t1", "t2", "t3")] == [None, None, None]
    assert fleet.state.tables.cluster_addr_table == {}


def test_master_and_slave_share_a_group(fleet: Fleet) -> None:  # [9]
    fleet.register(A)
    assert fleet.addrs() == {0: A}
    fleet.register(B, 1)
    assert fleet.addrs() == {0: A, 1: B}


def test_a_topic_added_by_the_master_has_the_slave_too(fleet: Fleet) -> None:  # [10]
    fleet.register(A)
    fleet.register(B, 1)
    fleet.register(A, topics=("TopicTest", "T1"), version=NEXT_VERSION)
    assert fleet.addrs("T1") == {0: A, 1: B}


def test_a_lost_master_leaves_the_slave_and_the_queues(fleet: Fleet) -> None:  # [11, 16]
    fleet.register(A)
    fleet.register(B, 1)
    fleet.unregister(A)
    route = fleet.route()
    assert route is not None
    assert addrs_of(route.broker_datas[0]) == {1: B}
    assert [queue.perm for queue in route.queue_datas] == [6]


def test_slave_and_master_change_roles(fleet: Fleet) -> None:  # [11, 12, 13]
    fleet.register(A)
    fleet.register(B, 1)
    fleet.unregister(A)
    fleet.register(B, 0, version=NEXT_VERSION)
    assert fleet.addrs() == {0: B}
    fleet.register(A, 1, version=DataVersion(3_000, 3))
    assert fleet.addrs() == {0: B, 1: A}


def test_a_slave_that_becomes_master_brings_its_topics_even_with_the_same_version(fleet: Fleet) -> None:
    fleet.register(A)
    fleet.register(B, 1, topics=("TopicTest", "only-on-b"))
    assert fleet.route("only-on-b") is None
    fleet.register(B, 0, topics=("TopicTest", "only-on-b"))
    assert fleet.addrs("only-on-b") == {0: B}


def test_an_unregistered_slave_leaves_the_master(fleet: Fleet) -> None:  # [14]
    fleet.register(A)
    fleet.register(B, 1)
    fleet.unregister(B)
    assert fleet.addrs() == {0: A}


def test_a_slaves_topics_are_ignored(fleet: Fleet) -> None:
    fleet.register(B, 1, topics=("TopicTest",))
    assert fleet.topics == set()


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (VERSION, False),
        (DataVersion(2_000, 1), True),
        (DataVersion(1_000, 2), True),
        (DataVersion(1_000, 0), True),
        (DataVersion(1_000, 1, 1), True),
    ],
)
def test_any_difference_of_data_versions_counts_as_changed(
    fleet: Fleet,
    other: DataVersion,
    changed: bool,
) -> None:  # [18]
    fleet.register()
    assert fleet.query(version=other) == (changed, VERSION)


def test_the_version_of_an_unknown_broker_is_changed_and_absent(fleet: Fleet) -> None:  # [20]
    assert fleet.query() == (True, None)


def test_a_version_asked_under_another_id_or_name_is_changed_and_absent(fleet: Fleet) -> None:
    fleet.register()
    assert fleet.query(broker_id=1) == (True, None)
    assert fleet.query(name="broker-b") == (True, None)


def test_a_route_has_the_queues_and_addresses_of_each_broker(fleet: Fleet) -> None:  # [22]
    fleet.register(A, topics=[("T", (8, 8, 6, 0))])
    fleet.register(B, topics=[("T", (16, 2, 4, 1))], name="broker-b")
    route = fleet.route("T")
    assert route is not None
    rows = [
        (q.cluster_name, q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag)
        for q in route.queue_datas
    ]
    assert rows == [(CLUSTER, "broker-a", 8, 8, 6, 0), (CLUSTER, "broker-b", 16, 2, 4, 1)]
    assert [group.broker_name for group in route.broker_datas] == ["broker-a", "broker-b"]


def test_a_registration_over_a_channel_that_is_not_open_changes_nothing(fleet: Fleet) -> None:
    ended = fleet.routes.heartbeats.open_channel()
    fleet.end_channel(ended)
    for channel_id in (ended, "never-opened", ""):
        with refuses(Reason.CHANNEL_GONE):
            fleet.register(channel_id=channel_id)
    assert fleet.topics == set()
    assert fleet.state.revision == 0


def registered(fleet: Fleet, topics: int, channel_id: str | None = None) -> BrokerRegistration:
    """The change that registers a broker with topics whose queues differ."""
    configs = {f"t{number}": (number, 1, 6, 0) for number in range(topics)}
    registration = Registration(BrokerKey(CLUSTER, "broker-a"), 0, A, VERSION, configs, channel_id=channel_id)
    return fleet.routes.registrations.register_broker(registration)


def test_a_registration_whose_channel_ends_while_it_is_prepared_changes_nothing(fleet: Fleet) -> None:
    channel_id = fleet.routes.heartbeats.open_channel()
    change = registered(fleet, 2, channel_id)
    change.prepare()
    fleet.routes.heartbeats.end_channel(channel_id)
    with refuses(Reason.CHANNEL_GONE):
        change.commit()
    assert fleet.topics == set()
    assert fleet.state.tables.broker_live_table == {}


def test_a_registration_shows_at_its_commit_and_before_it_is_merged(fleet: Fleet) -> None:
    change, topics = registered(fleet, 4 * FEW), {f"t{number}" for number in range(4 * FEW)}

    def shown() -> tuple[int, int]:
        return sum(fleet.route(topic) is not None for topic in topics), fleet.state.revision

    seen: list[tuple[int, int]] = []
    with breathing(lambda: seen.append(shown())):
        change.prepare()
    assert len(seen) >= 3
    assert {*seen, shown()} == {(0, 0)}
    change.commit()
    assert shown() == (4 * FEW, 1)
    assert fleet.topics == topics


@pytest.mark.parametrize("end", ["at a breath", "before the commit", "at the commit"])
def test_a_first_registration_that_is_given_up_leaves_nothing(fleet: Fleet, end: str) -> None:
    queue_datas = fleet.state.tables.queue_datas
    channel_id = fleet.routes.heartbeats.open_channel()
    change = registered(fleet, FEW + 1, channel_id)
    if end == "at a breath":
        with pytest.raises(GivenUp), breathing(AtBreath(0, give_up)):
            change.prepare()
    else:
        change.prepare()
    if end == "at the commit":
        fleet.routes.heartbeats.end_channel(channel_id)
        with refuses(Reason.CHANNEL_GONE):
            change.commit()
    assert fleet.topics == set()
    assert fleet.state.tables.broker_addr_table == {}
    assert queue_datas.of_group(BrokerKey(CLUSTER, "broker-a")), "or there is nothing to forget"
    fleet.state.begin_edit()
    assert not queue_datas.of_group(BrokerKey(CLUSTER, "broker-a"))
    assert not queue_datas._by_fragment


def test_a_topic_that_the_next_registration_lacks_stays(fleet: Fleet) -> None:  # [33]
    fleet.register(topics=("T", "T1"))
    fleet.register(topics=("T",), version=NEXT_VERSION)
    assert fleet.topics == {"T", "T1"}


def test_a_registration_with_the_same_version_changes_nothing_but_the_generation(fleet: Fleet) -> None:
    first = fleet.register()
    again = fleet.register(topics=("TopicTest", "sneaked-in"))
    assert (first.changed, again.changed) == (True, False)
    assert again.generation == first.generation + 1
    assert fleet.state.revision == 1
    assert fleet.topics == {"TopicTest"}


def test_the_same_address_in_two_clusters_is_two_brokers(fleet: Fleet) -> None:  # [38]
    fleet.register(A, version=VERSION)
    fleet.register(A, cluster="other-cluster", version=NEXT_VERSION)
    versions = {key.cluster_name: live.data_version for key, live in fleet.state.tables.broker_live_table.items()}
    assert versions == {CLUSTER: VERSION, "other-cluster": NEXT_VERSION}
    fleet.unregister(A, cluster="other-cluster")
    assert set(fleet.state.tables.broker_live_table) == {LiveKey(CLUSTER, A)}


def test_one_broker_name_in_two_clusters_is_two_groups(fleet: Fleet) -> None:
    fleet.register(A)
    fleet.register(B, cluster="other-cluster")
    route = fleet.route()
    assert route is not None
    assert [(g.cluster_name, addrs_of(g)) for g in route.broker_datas] == [
        (CLUSTER, {0: A}),
        ("other-cluster", {0: B}),
    ]
    fleet.unregister(A)
    assert fleet.addrs() == {0: B}


def test_a_late_unregistration_by_a_stale_owner_spares_the_new_owner(fleet: Fleet) -> None:  # upstream #5374
    fleet.register(A)
    fleet.register(B)
    assert fleet.unregister(A) is None
    assert fleet.addrs() == {0: B}


def test_an_unregistration_of_an_older_generation_spares_the_fresh_registration(fleet: Fleet) -> None:  # #11043
    first = fleet.register(A)
    fleet.register(A)
    assert fleet.unregister(A, generation=first.generation) is None
    assert fleet.addrs() == {0: A}


def test_unregistering_what_is_not_there_changes_nothing(fleet: Fleet) -> None:
    fleet.register(A)
    assert fleet.unregister(B) is None
    assert fleet.unregister(A, name="broker-b") is None
    assert fleet.unregister(A, cluster="other-cluster") is None
    assert fleet.addrs() == {0: A}


def test_another_address_takes_over_an_id_and_the_old_one_is_gone_from_all_tables(fleet: Fleet) -> None:
    fleet.register(A, filter_servers=("127.0.0.1:1",))
    result = fleet.register(B, version=NEXT_VERSION)
    assert [(gone.live.broker_addr, gone.reason) for gone in result.replaced] == [(A, RemovalReason.REPLACED)]
    assert fleet.addrs() == {0: B}
    assert set(fleet.state.tables.broker_live_table) == {LiveKey(CLUSTER, B)}
    assert fleet.state.tables.filter_server_table == {}
    assert fleet.query(A) == (True, None)


def test_an_address_that_comes_back_under_another_name_leaves_its_old_group(fleet: Fleet) -> None:  # upstream #1989
    fleet.register(A, topics=("T", "old"))
    result = fleet.register(A, topics=("T",), name="renamed")
    assert [gone.reason for gone in result.replaced] == [RemovalReason.REPLACED]
    assert set(fleet.state.tables.broker_addr_table) == {BrokerKey(CLUSTER, "renamed")}
    assert fleet.topics == {"T"}
    assert fleet.state.tables.cluster_addr_table == {CLUSTER: {"renamed"}}


def test_filter_servers_are_kept_replaced_and_removed(fleet: Fleet) -> None:
    fleet.register(filter_servers=("127.0.0.1:1", "127.0.0.1:2"))
    fleet.register()
    route = fleet.route()
    assert route is not None
    assert [(f.broker_addr, list(f.filter_servers)) for f in route.filter_servers] == [
        (A, ["127.0.0.1:1", "127.0.0.1:2"])
    ]
    fleet.register(filter_servers=("127.0.0.1:3",))
    route = fleet.route()
    assert route is not None
    assert list(route.filter_servers[0].filter_servers) == ["127.0.0.1:3"]
    fleet.register(filter_servers=())
    route = fleet.route()
    assert route is not None
    assert not route.filter_servers
    assert fleet.state.revision == 3


def test_an_increment_adds_to_what_it_builds_on(fleet: Fleet) -> None:
    fleet.register(topics=("T",))
    fleet.register(topics=("T1",), version=NEXT_VERSION, base_version=VERSION)
    assert fleet.topics == {"T", "T1"}
    assert fleet.query(version=NEXT_VERSION) == (False, NEXT_VERSION)


def test_an_increment_on_anything_else_is_refused(fleet: Fleet) -> None:  # upstream #4522, #9411
    with refuses(Reason.NEED_FULL_REGISTRATION):
        fleet.register(topics=("T1",), version=NEXT_VERSION, base_version=VERSION)
    fleet.register(topics=("T",), version=NEXT_VERSION)
    with refuses(Reason.NEED_FULL_REGISTRATION):
        fleet.register(topics=("T1",), version=DataVersion(3_000, 3), base_version=VERSION)
    assert fleet.topics == {"T"}


def test_frozen_tables_do_not_change(fleet: Fleet) -> None:
    channel_id = fleet.routes.heartbeats.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.state.frozen = True
    for change in (fleet.register, fleet.unregister, fleet.routes.heartbeats.open_channel):
        with refuses(Reason.SHUTTING_DOWN):
            change()
    assert fleet.end_channel(channel_id) == []
    fleet.clock.advance(1_000.0)
    assert fleet.scan() == []
    assert fleet.addrs() == {0: A}


def test_topic_names_are_paged_in_sorted_order(fleet: Fleet) -> None:
    fleet.register(topics=("b", "a", "d", "c"))
    assert fleet.state.topic_lists.all()("", 3) == ["a", "b", "c"]
    assert fleet.state.topic_lists.all()("c", 3) == ["d"]
    fleet.register(B, topics=("bb",), name="broker-b")
    assert fleet.state.topic_lists.all()("b", 10) == ["bb", "c", "d"]
    fleet.unregister(A)
    assert fleet.state.topic_lists.all()("", 10) == ["bb"]


def test_queue_data_of_many_topics_is_shared(fleet: Fleet) -> None:
    fleet.register(topics=[f"t{number}" for number in range(100)])
    assert len({id(queues[0]) for queues in fleet.state.tables.topic_queue_table.values()}) == 1
