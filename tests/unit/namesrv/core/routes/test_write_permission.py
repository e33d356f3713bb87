"""Write permissions that operators take and give back, what that would touch, and of which group."""

from __future__ import annotations

import pytest

from namesrv.core.changes import IntentChange, QueuesChange
from namesrv.core.errors import Reason
from namesrv.core.model import BlastRadius, BrokerKey, BrokerLiveInfo, HoldKey, TopicsInUse, WriteRule
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.removals import confirm_broker_loss, preview_broker_loss
from namesrv.core.state_change import apply_all_now, apply_now
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.operators import (
    CAUSE,
    GROUP,
    NEWER,
    C,
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

# Write permission


def test_a_wipe_takes_the_write_permission_and_shows_the_reported_one_beside_it(fleet: Fleet) -> None:
    fleet.register(topics=["TopicTest", "Other"])
    outcome = wipe(fleet)
    assert perms(fleet) == perms(fleet, "Other") == [(4, 6)]
    assert fleet.state.topic_count(GROUP) == 2
    assert outcome.queue_data_count == 0
    assert outcome.intents[0].after is not None


def test_a_wipe_survives_heartbeats_new_versions_and_new_topics(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    fleet.heartbeats.broker_heartbeat(GROUP, 0, A)
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


def test_the_latest_intent_about_a_group_stands(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    add(fleet)
    assert perms(fleet) == [(6, 4)]
    wipe(fleet)
    assert perms(fleet) == [(4, None)]
    add(fleet)
    assert perms(fleet) == [(6, 4)]
    assert list(fleet.state.intents.intents) == [GROUP]


def test_lifting_a_wipe_shows_what_the_broker_reported_meanwhile(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    fleet.register(version=NEWER, topics=[("TopicTest", (2, 2, 7, 1))])
    lift(fleet, GROUP)
    data = queues(fleet)[GROUP]
    assert (data.read_queue_nums, data.write_queue_nums, data.perm, data.topic_sys_flag) == (2, 2, 7, 1)
    assert not data.HasField("reported_perm")


def test_an_intent_is_one_revision_with_its_topics_its_intent_and_who_and_why(fleet: Fleet) -> None:
    fleet.register(topics=["a", "b"])
    before = fleet.state.revision
    wipe(fleet)
    change = fleet.state.change_log.last
    assert change.revision == before + 1
    assert change.cause == CAUSE
    put, intent = change.rows[-2:]
    assert isinstance(put, QueuesChange)
    assert (put.key, put.after and set(put.after), put.write) == (GROUP, {"a", "b"}, WriteRule.WIPED)
    assert isinstance(intent, IntentChange)
    lift(fleet, GROUP)
    lifted = fleet.state.change_log.last.rows[-1]
    assert isinstance(lifted, IntentChange)
    assert lifted.after is None


def test_a_preview_tells_the_same_and_changes_nothing(fleet: Fleet) -> None:
    fleet.register(topics=["a", "b"])
    hold(fleet, "b")
    revision, intents, before = fleet.state.revision, fleet.state.intents, snapshot_queues(fleet)
    previews = [
        wipe(fleet, validate_only=True),
        hold(fleet, "a", validate_only=True),
        lift(fleet, HoldKey("b", None), validate_only=True),
        delete(fleet, "a", validate_only=True),
    ]
    assert (fleet.state.revision, fleet.state.intents) == (revision, intents)
    assert snapshot_queues(fleet) == before
    applied = [wipe(fleet), hold(fleet, "a"), lift(fleet, HoldKey("b", None))]
    assert [(outcome.blast_radius, outcome.queue_data_count) for outcome in applied] == [
        (preview.blast_radius, preview.queue_data_count) for preview in previews[:3]
    ]
    assert previews[3].blast_radius == BlastRadius(1, 0, 1, ("a",))


def test_only_topics_of_applications_lose_their_last_writable_queue_and_they_are_named_first(fleet: Fleet) -> None:
    own = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "RMQ_SYS_ROCKSDB_OFFSET_TOPIC", CLUSTER, GROUP.broker_name]
    fleet.register(topics=own)
    assert wipe(fleet, validate_only=True).blast_radius == BlastRadius(len(own), 0, 0, tuple(sorted(own)))
    fleet.register(version=NEWER, topics=[*own, "zebra"])
    fleet.register(B, name="broker-b", topics=["apple"])
    assert wipe(fleet, validate_only=True).blast_radius == BlastRadius(len(own) + 1, 1, 0, ("zebra",))
    fleet.register(B, name="broker-b", version=NEWER, topics=["apple", *own, "zebra"])
    assert wipe(fleet, validate_only=True).blast_radius == BlastRadius(len(own) + 1, 0, 0, ("zebra", *sorted(own)))


def test_what_is_durable_gets_in_force_after_the_tables_froze_and_a_deletion_does_not(fleet: Fleet) -> None:
    fleet.register()
    fleet.state.frozen = True
    wipe(fleet)
    assert perms(fleet) == [(4, 6)]
    with refuses(Reason.SHUTTING_DOWN):
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


def test_an_intent_that_changes_no_permission_changes_no_route(fleet: Fleet) -> None:
    fleet.register()
    assert add(fleet).blast_radius == BlastRadius()
    assert perms(fleet) == [(6, None)]


def test_a_deletion_counts_what_vanishes_and_what_loses_its_last_writable_queue(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other", topics=[("TopicTest", (4, 4, 4, 0))])
    assert delete(fleet, validate_only=True) == OperatorOutcome(
        BlastRadius(1, 0, 1, ("TopicTest",)), 2, in_use=TopicsInUse(1, ("TopicTest",))
    )
    assert delete(fleet, cluster=CLUSTER) == OperatorOutcome(
        BlastRadius(1, 1, 0, ("TopicTest",)), 1, in_use=TopicsInUse(1, ("TopicTest",))
    )
    assert delete(fleet, cluster=CLUSTER) == OperatorOutcome(BlastRadius(), 0)


def test_a_confirmed_loss_counts_topics_of_groups_that_lose_a_broker(fleet: Fleet) -> None:
    lose_three_of_four(fleet)
    fleet.register(B, 1, ["TopicTest"], name="broker-0")

    def wanted(live: BrokerLiveInfo) -> bool:
        return live.broker.broker_name == "broker-0"

    revision = fleet.state.revision
    removed, radius = apply_now(preview_broker_loss(fleet.state, wanted))
    assert fleet.state.revision == revision
    assert [gone.live.broker_id for gone in removed] == [0]
    assert radius == BlastRadius(1, 0, 0, ("TopicTest",))
    assert apply_all_now(confirm_broker_loss(fleet.state, wanted, CAUSE)) == removed


# Which group is meant


def test_groups_of_a_name_are_those_registered_and_those_with_an_intent(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    fleet.register(C, name="broker-b")
    wipe(fleet, BrokerKey("gone", "broker-a"))
    wipe(fleet, BrokerKey("gone", "broker-c"))
    wipe(fleet)
    assert fleet.state.groups_named("broker-a", None) == [
        GROUP,
        BrokerKey("gone", "broker-a"),
        BrokerKey("other", "broker-a"),
    ]
    assert fleet.state.groups_named("broker-a", "other") == [BrokerKey("other", "broker-a")]
    assert fleet.state.groups_named("broker-c", CLUSTER) == []
