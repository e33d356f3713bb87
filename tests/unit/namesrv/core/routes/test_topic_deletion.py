"""Topics that operators delete and hold, in routes and in snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from namesrv.core.changes import QueuesChange
from namesrv.core.model import BlastRadius, BrokerKey, HoldKey, Intent, IntentKind, IntentTable, RemovalReason
from namesrv.core.operator_changes import IntentsChange
from namesrv.core.policy import Behaviour
from namesrv.core.state_change import apply_now
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.unit.namesrv.operators import (
    CAUSE,
    GROUP,
    NEWER,
    add,
    delete,
    hold,
    lift,
    lose_three_of_four,
    perms,
    queues,
    snapshot_queues,
    wipe,
)

# Deletion without hold


def test_a_deleted_topic_stays_away_until_its_broker_has_another_version(fleet: Fleet) -> None:
    fleet.register(topics=["TopicTest", "Other"])
    delete(fleet)
    removed = fleet.state.change_log.last.rows[0]
    assert isinstance(removed, QueuesChange)
    assert removed.reason is RemovalReason.DELETED_BY_OPERATOR
    fleet.register(topics=["TopicTest", "Other"])
    assert fleet.topics == {"Other"}
    fleet.register(topics=["TopicTest", "Other"], version=NEWER)
    assert fleet.topics == {"TopicTest", "Other"}


def test_a_deletion_in_one_cluster_leaves_the_others_alone(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    assert delete(fleet, cluster="other").queue_data_count == 1
    assert list(queues(fleet)) == [GROUP]
    revision = fleet.state.revision
    assert delete(fleet, cluster="nowhere").queue_data_count == 0
    assert fleet.state.revision == revision


# Holds


def test_a_held_topic_stays_away_whatever_its_brokers_register(fleet: Fleet) -> None:
    fleet.register(topics=["TopicTest", "Other"])
    outcome = hold(fleet)
    assert (outcome.queue_data_count, outcome.blast_radius) == (1, BlastRadius(1, 0, 1, ("TopicTest",)))
    fleet.register(topics=["TopicTest", "Other"], version=NEWER)
    fleet.register(B, name="broker-b")
    fleet.register_topic("TopicTest", {GROUP: (1, 1, 6, 0)})
    fleet.unregister()
    fleet.register(topics=["TopicTest", "Other"])
    assert fleet.topics == {"Other"}


def test_a_released_topic_comes_back_with_the_queues_that_were_reported_last(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    hold(fleet)
    fleet.register(version=NEWER, topics=[("TopicTest", (16, 8, 7, 1))])
    outcome = lift(fleet, HoldKey("TopicTest", None))
    assert (outcome.queue_data_count, outcome.blast_radius) == (2, BlastRadius(1, 0, 0, ("TopicTest",)))
    data = queues(fleet)[GROUP]
    assert (data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag) == (16, 8, 7, 1)
    assert len(queues(fleet)) == 2
    assert fleet.state.index.held_queue_table == {}


def test_a_group_that_left_does_not_come_back_with_a_released_topic(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    hold(fleet)
    fleet.unregister(B, name="broker-b")
    assert set(fleet.state.index.held_queue_table["TopicTest"]) == {GROUP}
    fleet.unregister()
    assert fleet.state.index.held_queue_table == {}
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 0
    assert fleet.topics == set()


def test_a_group_that_loses_one_of_its_brokers_keeps_what_it_reported(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, 1)
    hold(fleet)
    fleet.unregister()
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 1
    assert list(queues(fleet)) == [GROUP]


def test_a_hold_in_one_cluster_leaves_the_others_alone(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    assert hold(fleet, cluster="other").queue_data_count == 1
    fleet.register(version=NEWER)
    fleet.register(B, cluster="other", version=NEWER)
    assert list(queues(fleet)) == [GROUP]
    lift(fleet, HoldKey("TopicTest", "other"))
    assert list(queues(fleet)) == [GROUP, ("other", "broker-a")]


@pytest.mark.parametrize("order", list(itertools.permutations([None, "other"])), ids=str)
def test_of_two_holds_of_a_topic_each_is_lifted_by_itself(fleet: Fleet, order: tuple[str | None, ...]) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    for cluster in order:
        hold(fleet, cluster=cluster)
    assert fleet.route() is None
    first, second = order
    restored = lift(fleet, HoldKey("TopicTest", first)).queue_data_count
    assert (restored, list(queues(fleet))) == ((1, [GROUP]) if first is None else (0, []))
    lift(fleet, HoldKey("TopicTest", second))
    assert list(queues(fleet)) == [GROUP, ("other", "broker-a")]


def test_two_holds_of_a_topic_lifted_at_once_bring_it_back_once(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    keys = [HoldKey("TopicTest", None), HoldKey("TopicTest", "other")]
    for key in keys:
        hold(fleet, cluster=key.cluster_name)
    assert lift(fleet, *keys).queue_data_count == 2
    assert len(queues(fleet)) == 2
    assert len(fleet.state.tables.topic_queue_table) == 1


def test_two_holds_of_a_topic_set_at_once_count_each_group_once(fleet: Fleet) -> None:
    fleet.register()
    now = fleet.clock.wall_millis()
    holds = (Intent(IntentKind.TOPIC_HOLD, HoldKey("TopicTest", cluster), "op", now) for cluster in (None, CLUSTER))
    outcome = apply_now(IntentsChange(fleet.state, IntentTable.of(holds), CAUSE))
    assert (outcome.blast_radius, outcome.queue_data_count) == (BlastRadius(1, 0, 1, ("TopicTest",)), 1)


def test_a_hold_comes_before_the_topic_and_still_keeps_it_away(fleet: Fleet) -> None:
    hold(fleet)
    fleet.register(topics=["TopicTest", "Other"])
    assert fleet.topics == {"Other"}
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 1
    assert fleet.topics == {"TopicTest", "Other"}


def test_a_topic_is_reported_while_it_is_held(fleet: Fleet) -> None:
    fleet.register()
    for _ in range(2):
        reported = [fleet.state.is_reported("TopicTest", cluster) for cluster in (None, CLUSTER, "other")]
        assert reported == [True, True, False]
        hold(fleet)
    fleet.unregister()
    assert not fleet.state.is_reported("TopicTest", None)


def test_a_held_topic_of_a_wiped_group_comes_back_without_write_permission(fleet: Fleet) -> None:
    fleet.register()
    hold(fleet)
    wipe(fleet)
    fleet.register(version=NEWER, topics=[("TopicTest", (9, 9, 6, 0))])
    lift(fleet, HoldKey("TopicTest", None))
    assert perms(fleet) == [(4, 6)]
    assert_snapshot_is_as_the_routes(fleet)


def test_a_registration_that_drops_a_held_topic_drops_it_for_good_where_that_is_set() -> None:
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=["TopicTest", "Other"])
    hold(fleet)
    fleet.register(topics=["TopicTest", "Other"], version=NEWER)
    assert set(fleet.state.index.held_queue_table) == {"TopicTest"}
    fleet.register(topics=["Other"])
    assert fleet.state.index.held_queue_table == {}
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 0
    assert fleet.topics == {"Other"}


def test_groups_that_the_guard_brings_back_have_their_held_topics_to_give_back(fleet: Fleet) -> None:
    hold(fleet)
    lose_three_of_four(fleet)
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 4


# Routes and snapshots


def assert_snapshot_is_as_the_routes(fleet: Fleet) -> None:
    shown = snapshot_queues(fleet)
    assert shown.keys() == fleet.topics
    for topic, datas in shown.items():
        assert datas == list(queues(fleet, topic).values()), topic


def actions(fleet: Fleet) -> Iterator[object]:
    """A day of a fleet, one change after another."""
    other = BrokerKey("other", "broker-a")
    yield fleet.register(topics=["a", ("b", (4, 4, 7, 0)), ("c", (4, 4, 0, 0))])
    yield fleet.register(B, cluster="other", topics=["a", "b"])
    yield wipe(fleet)
    yield hold(fleet, "b")
    yield add(fleet, other)
    yield fleet.register(topics=["a", ("b", (1, 1, 4, 0)), "d"], version=NEWER)
    yield delete(fleet, "a", "other")
    yield fleet.register(B, cluster="other", topics=["a", "b", ("e", (4, 4, 4, 0))], version=NEWER)
    yield wipe(fleet, other)
    yield lift(fleet, HoldKey("b", None), GROUP)
    yield fleet.unregister()
    yield fleet.register(topics=["a", "b", "c"])
    yield lift(fleet, other)


def test_snapshots_and_routes_show_the_same_permissions_after_every_change(fleet: Fleet) -> None:
    for _ in actions(fleet):
        assert_snapshot_is_as_the_routes(fleet)
    assert {topic: perms(fleet, topic) for topic in fleet.topics} == {
        "a": [(6, None), (6, None)],
        "b": [(6, None), (6, None)],
        "c": [(6, None)],
        "e": [(4, None)],
    }


def test_a_snapshot_keeps_the_permissions_of_its_revision(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    taken = fleet.state.snapshot()
    before = list(taken.messages())
    lift(fleet, GROUP)
    assert list(taken.messages()) == before
