"""RouteInfoManager: upstream's bugs that must not be here, and what upstream's own tests do not show."""

from __future__ import annotations

import pytest

from namesrv.app.worker import GivenUp
from namesrv.core.changes import Cause
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, DataVersion, LiveKey, Registration, RemovalReason
from namesrv.core.pace import FEW
from namesrv.core.registrations import BrokerRegistration
from tests.support.breaths import AtBreath, breathing, give_up
from tests.support.core_fleet import CLUSTER, VERSION, A, B, Fleet
from tests.support.refusals import refuses

NEXT_VERSION = DataVersion(2_000, 2)


def test_the_last_broker_takes_its_topics_with_it(fleet: Fleet) -> None:
    fleet.register(topics=("t1", "t2", "t3"))
    removed = fleet.unregister()
    assert removed is not None
    assert removed.group_gone
    assert removed.topics_removed == 3
    assert [fleet.route(topic) for topic in ("t1", "t2", "t3")] == [None, None, None]
    assert fleet.state.index.cluster_addr_table == {}


def test_a_slave_that_becomes_master_brings_its_topics_even_with_the_same_version(fleet: Fleet) -> None:
    fleet.register(A)
    fleet.register(B, 1, topics=("TopicTest", "only-on-b"))
    assert fleet.route("only-on-b") is None
    fleet.register(B, 0, topics=("TopicTest", "only-on-b"))
    assert fleet.addrs("only-on-b") == {0: B}


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
) -> None:
    fleet.register()
    assert fleet.query(version=other) == (changed, VERSION)


def test_a_version_asked_under_another_id_or_name_is_changed_and_absent(fleet: Fleet) -> None:
    fleet.register()
    assert fleet.query(broker_id=1) == (True, None)
    assert fleet.query(name="broker-b") == (True, None)


def test_a_registration_over_a_channel_that_is_not_open_changes_nothing(fleet: Fleet) -> None:
    ended = fleet.heartbeats.open_channel()
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
    return BrokerRegistration(fleet.state, registration)


def test_a_registration_whose_channel_ends_while_it_is_prepared_changes_nothing(fleet: Fleet) -> None:
    channel_id = fleet.heartbeats.open_channel()
    change = registered(fleet, 2, channel_id)
    change.prepare()
    fleet.heartbeats.end_channel(channel_id)
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
    queue_datas = fleet.state.index.queue_datas
    channel_id = fleet.heartbeats.open_channel()
    change = registered(fleet, FEW + 1, channel_id)
    if end == "at a breath":
        with pytest.raises(GivenUp), breathing(AtBreath(0, give_up)):
            change.prepare()
    else:
        change.prepare()
    if end == "at the commit":
        fleet.heartbeats.end_channel(channel_id)
        with refuses(Reason.CHANNEL_GONE):
            change.commit()
    assert fleet.topics == set()
    assert fleet.state.tables.broker_addr_table == {}
    assert queue_datas.of_group(BrokerKey(CLUSTER, "broker-a")), "or there is nothing to forget"
    fleet.state.begin_edit(Cause("test"))
    assert not queue_datas.of_group(BrokerKey(CLUSTER, "broker-a"))
    assert not queue_datas._by_fragment


def test_a_registration_with_the_same_version_changes_nothing_but_the_generation(fleet: Fleet) -> None:
    first = fleet.register()
    again = fleet.register(topics=("TopicTest", "sneaked-in"))
    assert (first.changed, again.changed) == (True, False)
    assert again.generation == first.generation + 1
    assert fleet.state.revision == 1
    assert fleet.topics == {"TopicTest"}


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
    channel_id = fleet.heartbeats.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.state.frozen = True
    for change in (fleet.register, fleet.unregister, fleet.heartbeats.open_channel):
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
