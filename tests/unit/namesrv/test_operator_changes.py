"""What operators decide is kept apart from what brokers report, and shows in routes and snapshots alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.behaviour import Behaviour
from namesrv.core.changes import Cause, IntentLifted, IntentPut, QueuesPut, QueuesRemoved
from namesrv.core.errors import ShuttingDown
from namesrv.core.intents import HoldKey, Intent, IntentKey, IntentKind, IntentTable
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.records import BlastRadius, BrokerKey, DataVersion, RemovalReason, WriteRule
from namesrv.core.steps import finish
from tests.unit.namesrv.fleet import CLUSTER, A, B, Fleet

GROUP = BrokerKey(CLUSTER, "broker-a")
CAUSE = Cause("test", "an operator", "because")
NEWER = DataVersion(2_000, 2)
C = "127.0.0.1:30911"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def decide(fleet: Fleet, kind: IntentKind, key: IntentKey, *, validate_only: bool = False) -> OperatorOutcome:
    table = fleet.manager.intents.with_intent(Intent(kind, key, "an operator", fleet.clock.wall_millis()))
    return finish(fleet.manager.publish_intents(table, CAUSE, validate_only=validate_only))


def wipe(fleet: Fleet, key: BrokerKey = GROUP, *, validate_only: bool = False) -> OperatorOutcome:
    return decide(fleet, IntentKind.WIPE_WRITE_PERM, key, validate_only=validate_only)


def add(fleet: Fleet, key: BrokerKey = GROUP) -> OperatorOutcome:
    return decide(fleet, IntentKind.ADD_WRITE_PERM, key)


def hold(
    fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None, *, validate_only: bool = False
) -> OperatorOutcome:
    return decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, cluster), validate_only=validate_only)


def lift(fleet: Fleet, *keys: IntentKey, validate_only: bool = False) -> OperatorOutcome:
    table = fleet.manager.intents.without(keys)
    return finish(fleet.manager.publish_intents(table, CAUSE, validate_only=validate_only))


def delete(
    fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None, *, validate_only: bool = False
) -> OperatorOutcome:
    return finish(fleet.manager.delete_topic(topic, cluster, CAUSE, validate_only=validate_only))


def queues(fleet: Fleet, topic: str = "TopicTest") -> dict[tuple[str, str], route_data_pb2.QueueData]:
    """A topic's queues by cluster and group."""
    route = fleet.route(topic)
    return {(data.cluster_name, data.broker_name): data for data in route.queue_datas} if route else {}


def perms(fleet: Fleet, topic: str = "TopicTest") -> list[tuple[int, int | None]]:
    """Permission in force and, if it is there, the reported one, of each of the topic's groups."""
    return [
        (data.perm, data.reported_perm if data.HasField("reported_perm") else None)
        for data in queues(fleet, topic).values()
    ]


def snapshot_queues(fleet: Fleet) -> dict[str, list[route_data_pb2.QueueData]]:
    """Queues by topic as a snapshot has them."""
    response = route_service_pb2.StreamRouteSnapshotResponse
    chunks = (response.FromString(message).chunk for message in fleet.manager.snapshot().messages())
    return {row.topic: list(row.queue_datas) for chunk in chunks for row in chunk.topics}


# Write permission


def test_a_wipe_takes_the_write_permission_and_shows_the_reported_one_beside_it(fleet: Fleet) -> None:
    fleet.register(topics=["TopicTest", "Other"])
    outcome = wipe(fleet)
    assert perms(fleet) == perms(fleet, "Other") == [(4, 6)]
    assert fleet.manager.topic_count(GROUP) == 2
    assert outcome.queue_data_count == 0
    assert isinstance(outcome.intents[0], IntentPut)


def test_a_wipe_survives_heartbeats_new_versions_and_new_topics(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    fleet.manager.broker_heartbeat(GROUP, 0, A)
    fleet.register()
    assert perms(fleet) == [(4, 6)]
    fleet.register(version=NEWER, topics=[("TopicTest", (8, 8, 6, 0)), "New"])
    assert perms(fleet) == perms(fleet, "New") == [(4, 6)]
    assert queues(fleet)[GROUP].read_queue_nums == 8
    fleet.register_topic("ByName", {GROUP: (1, 1, 7, 0)})
    assert perms(fleet, "ByName") == [(5, 7)]


def test_a_wipe_survives_that_the_group_leaves_and_comes_back(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    fleet.unregister()
    assert fleet.route() is None
    fleet.register()
    assert perms(fleet) == [(4, 6)]
    fleet.clock.advance(121)
    fleet.scan()
    assert fleet.route() is None
    fleet.register(B, version=NEWER)
    assert perms(fleet) == [(4, 6)]
    lift(fleet, GROUP)
    assert perms(fleet) == [(6, None)]


def test_a_wipe_of_a_group_that_is_not_there_yet_holds_from_its_first_registration_on(fleet: Fleet) -> None:
    assert wipe(fleet).blast_radius == BlastRadius()
    fleet.register()
    assert perms(fleet) == [(4, 6)]


def test_a_wipe_is_of_one_group_of_one_cluster(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    fleet.register(C, cluster="other")
    wipe(fleet)
    shown = {key: data.perm for key, data in queues(fleet).items()}
    assert shown == {GROUP: 4, (CLUSTER, "broker-b"): 6, ("other", "broker-a"): 6}


@pytest.mark.parametrize("perm", range(8))
def test_only_the_write_bit_changes_and_the_reported_permission_shows_where_it_differs(fleet: Fleet, perm: int) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, perm, 0))])
    wipe(fleet)
    assert perms(fleet) == [(perm & 5, perm if perm & 2 else None)]
    lift(fleet, GROUP)
    assert perms(fleet) == [(perm, None)]
    add(fleet)
    assert perms(fleet) == [(perm | 2, None if perm & 2 else perm)]
    lift(fleet, GROUP)
    assert perms(fleet) == [(perm, None)]


def test_the_latest_decision_about_a_group_stands(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    add(fleet)
    assert perms(fleet) == [(6, 4)]
    wipe(fleet)
    assert perms(fleet) == [(4, None)]
    add(fleet)
    assert perms(fleet) == [(6, 4)]
    assert list(fleet.manager.intents.intents) == [GROUP]


def test_lifting_a_wipe_shows_what_the_broker_reported_meanwhile(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    fleet.register(version=NEWER, topics=[("TopicTest", (2, 2, 7, 1))])
    lift(fleet, GROUP)
    data = queues(fleet)[GROUP]
    assert (data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag) == (2, 2, 7, 1)
    assert not data.HasField("reported_perm")


def test_a_decision_is_one_revision_with_its_topics_its_intent_and_who_and_why(fleet: Fleet) -> None:
    fleet.register(topics=["a", "b"])
    before = fleet.manager.revision
    wipe(fleet)
    change = fleet.manager.change_log.last
    assert change.revision == before + 1
    assert change.cause == CAUSE
    put, intent = change.rows[-2:]
    assert isinstance(put, QueuesPut)
    assert (put.broker, set(put.queues), put.write) == (GROUP, {"a", "b"}, WriteRule.WIPED)
    assert isinstance(intent, IntentPut)
    lift(fleet, GROUP)
    assert isinstance(fleet.manager.change_log.last.rows[-1], IntentLifted)


def test_a_preview_tells_the_same_and_changes_nothing(fleet: Fleet) -> None:
    fleet.register(topics=["a", "b"])
    hold(fleet, "b")
    revision, intents, before = fleet.manager.revision, fleet.manager.intents, snapshot_queues(fleet)
    previews = [
        wipe(fleet, validate_only=True),
        hold(fleet, "a", validate_only=True),
        lift(fleet, HoldKey("b", None), validate_only=True),
        delete(fleet, "a", validate_only=True),
    ]
    assert (fleet.manager.revision, fleet.manager.intents) == (revision, intents)
    assert snapshot_queues(fleet) == before
    applied = [wipe(fleet), hold(fleet, "a"), lift(fleet, HoldKey("b", None))]
    assert [(outcome.blast_radius, outcome.queue_data_count) for outcome in applied] == [
        (preview.blast_radius, preview.queue_data_count) for preview in previews[:3]
    ]
    assert previews[3].blast_radius == BlastRadius(1, 0, 1, ("a",))


def test_what_is_durable_gets_in_force_after_the_tables_froze_and_a_deletion_does_not(fleet: Fleet) -> None:
    fleet.register()
    fleet.manager.frozen = True
    wipe(fleet)
    assert perms(fleet) == [(4, 6)]
    with pytest.raises(ShuttingDown):
        delete(fleet)
    assert fleet.route()


# Blast radius


def test_a_wipe_counts_the_topics_that_lose_their_last_writable_queue(fleet: Fleet) -> None:
    fleet.register(topics=["only-here", "here-too", "not-writable-there", ("read-only", (4, 4, 4, 0))])
    fleet.register(B, name="broker-b", topics=["here-too", ("not-writable-there", (4, 4, 4, 0)), "elsewhere"])
    assert wipe(fleet, validate_only=True).blast_radius == BlastRadius(3, 2, 0, ("not-writable-there", "only-here"))
    wipe(fleet, BrokerKey(CLUSTER, "broker-b"))
    assert wipe(fleet).blast_radius == BlastRadius(3, 3, 0, ("here-too", "not-writable-there", "only-here"))


def test_the_first_hundred_topics_of_the_worst_kind_are_named(fleet: Fleet) -> None:
    topics = [f"t{number:04}" for number in range(2_000)]
    fleet.register(topics=[*reversed(topics), ("a-read-only-one", (4, 4, 4, 0))])
    assert wipe(fleet).blast_radius == BlastRadius(2_000, 2_000, 0, tuple(topics[:100]))


def test_a_queue_count_of_zero_is_no_writable_queue(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 6, 0))])
    fleet.register(B, name="broker-b", topics=[("TopicTest", (4, 0, 6, 0))])
    assert wipe(fleet).blast_radius.losing_last_writable_queue == 1


def test_lifting_a_wipe_changes_routes_and_no_topic_loses_anything(fleet: Fleet) -> None:
    fleet.register(topics=["a", "b"])
    wipe(fleet)
    assert lift(fleet, GROUP).blast_radius == BlastRadius(2, 0, 0, ("a", "b"))


def test_a_decision_that_changes_no_permission_changes_no_route(fleet: Fleet) -> None:
    fleet.register()
    assert add(fleet).blast_radius == BlastRadius()
    assert perms(fleet) == [(6, None)]


def test_a_deletion_counts_what_vanishes_and_what_loses_its_last_writable_queue(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other", topics=[("TopicTest", (4, 4, 4, 0))])
    assert delete(fleet, validate_only=True) == OperatorOutcome(BlastRadius(1, 0, 1, ("TopicTest",)), 2)
    assert delete(fleet, cluster=CLUSTER) == OperatorOutcome(BlastRadius(1, 1, 0, ("TopicTest",)), 1)
    assert delete(fleet, cluster=CLUSTER) == OperatorOutcome(BlastRadius(), 0)


def test_a_confirmed_loss_counts_the_topics_of_groups_that_lose_a_broker_and_stay(fleet: Fleet) -> None:
    lose_three_of_four(fleet)
    fleet.register(B, 1, ["TopicTest"], name="broker-0")
    removed, radius = finish(
        fleet.manager.confirm_broker_loss(lambda live: live.broker.broker_name == "broker-0", CAUSE)
    )
    assert [gone.live.broker_id for gone in removed] == [0]
    assert radius == BlastRadius(1, 0, 0, ("TopicTest",))


# Deletion without hold


def test_a_deleted_topic_stays_away_until_its_broker_has_another_version(fleet: Fleet) -> None:
    fleet.register(topics=["TopicTest", "Other"])
    delete(fleet)
    removed = fleet.manager.change_log.last.rows[0]
    assert isinstance(removed, QueuesRemoved)
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
    revision = fleet.manager.revision
    assert delete(fleet, cluster="nowhere").queue_data_count == 0
    assert fleet.manager.revision == revision


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
    assert fleet.manager.tables.held_queue_table == {}


def test_a_group_that_left_does_not_come_back_with_a_released_topic(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    hold(fleet)
    fleet.unregister(B, name="broker-b")
    assert set(fleet.manager.tables.held_queue_table["TopicTest"]) == {GROUP}
    fleet.unregister()
    assert fleet.manager.tables.held_queue_table == {}
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
    assert len(fleet.manager.tables.topic_queue_table) == 1


def test_two_holds_of_a_topic_decided_at_once_count_each_group_once(fleet: Fleet) -> None:
    fleet.register()
    now = fleet.clock.wall_millis()
    holds = (Intent(IntentKind.TOPIC_HOLD, HoldKey("TopicTest", cluster), "op", now) for cluster in (None, CLUSTER))
    outcome = finish(fleet.manager.publish_intents(IntentTable.of(holds), CAUSE))
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
        reported = [fleet.manager.is_reported("TopicTest", cluster) for cluster in (None, CLUSTER, "other")]
        assert reported == [True, True, False]
        hold(fleet)
    fleet.unregister()
    assert not fleet.manager.is_reported("TopicTest", None)


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
    assert set(fleet.manager.tables.held_queue_table) == {"TopicTest"}
    fleet.register(topics=["Other"])
    assert fleet.manager.tables.held_queue_table == {}
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 0
    assert fleet.topics == {"Other"}


def lose_three_of_four(fleet: Fleet) -> None:
    """Four groups of one topic lose three brokers one after another, and the guard brings those back."""
    channels = [fleet.manager.open_channel() for _ in range(4)]
    for number, channel_id in enumerate(channels):
        fleet.register(f"127.0.0.{number + 1}:1", name=f"broker-{number}", channel_id=channel_id)
    for channel_id in channels[:3]:
        fleet.end_channel(channel_id)
    assert len(fleet.manager.unconfirmed) == 3


def test_groups_that_the_guard_brings_back_have_their_held_topics_to_give_back(fleet: Fleet) -> None:
    hold(fleet)
    lose_three_of_four(fleet)
    assert lift(fleet, HoldKey("TopicTest", None)).queue_data_count == 4


# Which group is meant


def test_groups_of_a_name_are_those_registered_and_those_with_an_intent(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    fleet.register(C, name="broker-b")
    wipe(fleet, BrokerKey("gone", "broker-a"))
    wipe(fleet, BrokerKey("gone", "broker-c"))
    wipe(fleet)
    assert fleet.manager.groups_named("broker-a", None) == [
        GROUP,
        BrokerKey("gone", "broker-a"),
        BrokerKey("other", "broker-a"),
    ]
    assert fleet.manager.groups_named("broker-a", "other") == [BrokerKey("other", "broker-a")]
    assert fleet.manager.groups_named("broker-c", CLUSTER) == []


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
    taken = fleet.manager.snapshot()
    before = list(taken.messages())
    lift(fleet, GROUP)
    assert list(taken.messages()) == before
