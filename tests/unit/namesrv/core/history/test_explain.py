"""Why broker groups are in a topic's route, left out of it, or gone: one sentence for each reason there is."""

from __future__ import annotations

from typing import Any

import pytest
from namesrv_api.v1.admin_service_pb2 import RouteExplanation as Why

from namesrv.core.changes import ChangeLog
from namesrv.core.encoding import removal_reason
from namesrv.core.explain import add_journal_entry
from namesrv.core.journal import JournalEntry
from namesrv.core.model import (
    EMPTY,
    Behaviour,
    BrokerKey,
    DataVersion,
    Doubt,
    Intent,
    IntentKind,
    IntentTable,
    RemovalReason,
)
from namesrv.core.operator_changes import TopicDeletion, publish_kv_config
from namesrv.core.pace import FEW
from namesrv.core.removals import unregister_broker
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.state_changes import apply_now
from tests.support.yield_points import AtYieldPoint, yielding
from tests.unit.namesrv.explaining import (
    CAUSE,
    GROUP,
    NEWER,
    START,
    T0,
    T0_MILLIS,
    T10,
    T10_MILLIS,
    decide,
    explain,
    hold,
    only,
)


def told(
    state: Why.State, text: str, since_millis: int | None = None, reason: RemovalReason | None = None, **rest: Any
) -> Why:
    rest = {"cluster_name": CLUSTER, "broker_name": "broker-a", **rest}
    return Why(state=state, explanation=text, since_millis=since_millis, removal_reason=removal_reason(reason), **rest)


# In the route


def test_a_group_in_the_route_is_told_with_its_queues_and_since_when(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (8, 1, 6, 0))])
    fleet.clock.advance(10)
    fleet.register(B, 1)
    text = "in the route with 8 queues to read and 1 queue to write"
    assert explain(fleet) == [told(Why.STATE_IN_ROUTE, text, T0_MILLIS)]
    fleet.register_topic("TopicTest", {GROUP: (8, 8, 6, 0)})
    assert only(fleet).since_millis == T10_MILLIS


def test_since_when_is_not_known_of_what_the_change_log_has_dropped(fleet: Fleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=1)
    fleet.register()
    fleet.register(B, name="broker-b", topics=["Other"])
    text = "in the route with 4 queues to read and 4 queues to write"
    assert only(fleet) == told(Why.STATE_IN_ROUTE, text)


def test_a_drained_group_is_read_only_by_whom_since_when_and_why(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    decide(fleet, IntentKind.WIPE_WRITE_PERM, GROUP)
    explanation = only(fleet)
    assert (explanation.state, list(explanation.conditions)) == (Why.STATE_IN_ROUTE, [Why.CONDITION_DRAINED])
    drained = f"read-only because drained by an operator since {T10} (because)"
    assert explanation.explanation == f"in the route with 4 queues to read; {drained}"
    assert explanation.since_millis == T10_MILLIS


def test_a_grant_of_write_permission_is_told_instead_of_what_is_reported(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    decide(fleet, IntentKind.ADD_WRITE_PERM, GROUP)
    explanation = only(fleet)
    assert explanation.conditions == [Why.CONDITION_WRITE_GIVEN]
    assert explanation.explanation.startswith("in the route with 4 queues to read and 4 queues to write; ")
    assert explanation.explanation.endswith(f"; write permission given by an operator since {T0} (because)")
    assert "read-only" not in explanation.explanation


def test_a_topic_that_is_reported_without_write_is_read_only_for_that(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    reported = "read-only because the broker reports permission 4, without write"
    assert only(fleet).explanation == f"in the route with 4 queues to read; {reported}"
    assert only(fleet).conditions == [Why.CONDITION_REPORTED_READ_ONLY]


def test_a_group_without_a_master_can_only_be_read_from_and_since_when(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, 1)
    fleet.clock.advance(10)
    fleet.unregister()
    why = f"no master is registered since {T10}, so it can only be read from: writers need broker id 0"
    text = f"in the route with 4 queues to read; {why}"
    assert only(fleet).explanation == text
    assert only(fleet).conditions == [Why.CONDITION_NO_MASTER]
    assert only(fleet, broker_name="broker-a", cluster_name=CLUSTER).explanation == text


def acting_fleet(topic: str) -> Fleet:
    fleet = Fleet(Behaviour(support_acting_master=True))
    fleet.register(topics=[topic], enable_acting_master=True, zone_name="z1")
    fleet.register(B, 1, topics=[topic], enable_acting_master=True)
    fleet.clock.advance(10)
    fleet.unregister()
    return fleet


def test_a_slave_that_stands_in_makes_the_group_read_only() -> None:
    text = (
        "in the route with 4 queues to read; read-only because a slave, 127.0.0.1:20911 (id 1), "
        f"stands in for the master, which is not registered since {T10}"
    )
    expected = told(Why.STATE_IN_ROUTE, text, T10_MILLIS, conditions=[Why.CONDITION_ACTING_MASTER])
    assert only(acting_fleet("TopicTest")) == expected


def test_a_broker_that_the_guard_keeps_is_unconfirmed_and_since_when(fleet: Fleet) -> None:
    channel = fleet.state.open_channel()
    for number in range(4):
        fleet.register(f"127.0.0.1:1{number}911", name=f"broker-{number}", channel_id=channel)
    fleet.clock.advance(10)
    fleet.end_channel(channel)
    guarded = (
        f"; unconfirmed since {T10}: the mass-loss guard keeps 127.0.0.1:12911 (id 0), "
        "lost together with too many others"
    )
    explanation = only(fleet, broker_name="broker-2", cluster_name=CLUSTER)
    assert (explanation.state, list(explanation.conditions)) == (
        Why.STATE_IN_ROUTE,
        [Why.CONDITION_UNCONFIRMED_BY_GUARD],
    )
    assert explanation.explanation.endswith(guarded)
    fleet.register("127.0.0.1:12911", name="broker-2")
    assert "unconfirmed" not in only(fleet, broker_name="broker-2").explanation


def test_a_broker_that_only_a_snapshot_file_knows_is_unconfirmed_since_the_start(fleet: Fleet) -> None:
    for number in range(5):
        fleet.register(f"127.0.0.1:1{number}911", number)
    restarted = Fleet()
    restarted.state.load_snapshot(fleet.state.snapshot().messages())
    explanation = only(restarted)
    assert explanation.explanation == (
        "in the route with 4 queues to read and 4 queues to write; "
        f"unconfirmed since the name server's start at {START}: 127.0.0.1:10911 (id 0), 127.0.0.1:11911 (id 1), "
        "127.0.0.1:12911 (id 2) and 2 more has not registered since"
    )
    assert not explanation.HasField("since_millis")
    assert explanation.conditions == [Why.CONDITION_UNCONFIRMED_SINCE_START]


def test_conditions_are_in_the_order_of_the_clauses(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    fleet.register(B, 1)
    fleet.unregister()
    decide(fleet, IntentKind.WIPE_WRITE_PERM, GROUP)
    explanation = only(fleet)
    assert explanation.conditions == [Why.CONDITION_DRAINED, Why.CONDITION_REPORTED_READ_ONLY, Why.CONDITION_NO_MASTER]
    assert len(explanation.explanation.split("; ")) == 1 + len(explanation.conditions)


# Left out for a zone


def test_a_group_of_another_zone_is_left_out_for_that_and_in_the_route_for_everybody_else(fleet: Fleet) -> None:
    fleet.register(zone_name="z1")
    fleet.register(B, name="broker-b")
    of_z1, of_none = explain(fleet, zone_name="Z2")
    assert of_z1.state == of_none.state == Why.STATE_OTHER_ZONE
    assert of_z1.explanation == "left out of the route for zone Z2: the group is of zone z1, and its master is live"
    assert of_none.explanation == "left out of the route for zone Z2: the group has no zone, and its master is live"
    states = [each.state for each in explain(fleet, zone_name="Z1")]
    assert states == [Why.STATE_IN_ROUTE, Why.STATE_OTHER_ZONE]
    assert [each.state for each in explain(fleet)] == [Why.STATE_IN_ROUTE] * 2


def test_a_group_of_another_zone_whose_slave_stands_in_is_left_out_too() -> None:
    explanation = only(acting_fleet("TopicTest"), zone_name="z2")
    assert explanation.explanation.endswith("the group is of zone z1, and a slave stands in for its master")
    assert (explanation.state, list(explanation.conditions)) == (Why.STATE_OTHER_ZONE, [Why.CONDITION_ACTING_MASTER])


# Held and deleted


@pytest.mark.parametrize(("cluster", "where"), [(None, "all clusters"), (CLUSTER, f"cluster {CLUSTER}")])
def test_a_held_topic_is_told_by_whom_since_when_and_why(fleet: Fleet, cluster: str | None, where: str) -> None:
    fleet.register()
    fleet.clock.advance(10)
    hold(fleet, cluster=cluster)
    text = (
        f"not in the route: the broker reports it, but the topic is held back in {where} "
        f"by an operator since {T10} (because)"
    )
    reason = RemovalReason.DELETED_BY_OPERATOR
    assert only(fleet) == told(Why.STATE_TOPIC_HELD, text, T10_MILLIS, reason)


def test_a_deleted_topic_is_told_by_whom_when_and_why_and_how_it_comes_back(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    apply_now(TopicDeletion(fleet.state, "TopicTest", None, CAUSE))
    text = (
        f"not in the route: deleted by an operator at {T10} (because); "
        "it comes back when the broker registers it with another DataVersion"
    )
    reason = RemovalReason.DELETED_BY_OPERATOR
    assert only(fleet) == told(Why.STATE_TOPIC_DELETED, text, T10_MILLIS, reason)
    fleet.register(version=NEWER)
    assert only(fleet).state == Why.STATE_IN_ROUTE


def test_a_deleted_topic_does_not_come_back_while_it_is_held(fleet: Fleet) -> None:
    fleet.register()
    apply_now(TopicDeletion(fleet.state, "TopicTest", None, CAUSE))
    hold(fleet)
    explanation = only(fleet)
    assert (explanation.state, list(explanation.conditions)) == (Why.STATE_TOPIC_DELETED, [Why.CONDITION_TOPIC_HELD])
    assert explanation.explanation.endswith(
        "; if the broker reports it, it stays out: the topic is held back in all clusters "
        f"by an operator since {T0} (because)"
    )


def test_a_topic_that_is_not_in_the_registration_any_more_is_told_so() -> None:
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=["TopicTest", "Other"])
    fleet.clock.advance(10)
    fleet.register(topics=["Other"], version=NEWER)
    text = f"not in the route: not in the registration that the broker sent at {T10}, nor in one since"
    reason = RemovalReason.NOT_IN_REGISTRATION
    assert only(fleet) == told(Why.STATE_TOPIC_DROPPED, text, T10_MILLIS, reason)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Doubt.OWN_STALL, "ended right after this name server had stalled"),
        (Doubt.CLOSED_HERE, "was closed by this name server"),
        (Doubt.HANDED_OVER, "was handed over for a restart of its agent"),
    ],
)
def test_a_doubted_broker_is_told_with_the_reason_and_the_time_that_is_left(
    fleet: Fleet, why: Doubt, said: str
) -> None:
    channel_id = fleet.state.open_channel()
    fleet.register(channel_id=channel_id)
    fleet.state.end_channel(channel_id)
    fleet.state.doubt_channel_end(channel_id, 60.0, why)
    fleet.clock.advance(17)
    doubted = only(fleet)
    assert doubted.conditions == [Why.CONDITION_DOUBTED]
    assert doubted.explanation.endswith(
        f"; doubted: the channel of 127.0.0.1:10911 (id 0) {said}; it leaves at 2023-11-14T22:31:00.000Z, in 43 s, "
        "unless it registers again"
    )
    fleet.register()
    assert only(fleet).conditions == []


# Gone


def test_a_group_that_unregistered_is_told_with_its_brokers(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    text = f"not in the route: the group's last broker, 127.0.0.1:10911 (id 0), unregistered at {T10}"
    assert only(fleet) == told(Why.STATE_GROUP_LEFT, text, T10_MILLIS, RemovalReason.UNREGISTERED)


def test_a_group_that_expired_is_told_so(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, 1)
    fleet.clock.advance(121)
    assert len(fleet.scan()) == 2
    explanation = only(fleet)
    assert explanation.explanation == (
        "not in the route: the group's last brokers, 127.0.0.1:10911 (id 0), 127.0.0.1:20911 (id 1), "
        "expired, silent for longer than its timeout, at 2023-11-14T22:32:01.000Z"
    )
    assert explanation.removal_reason == RemovalReason.EXPIRED.value


LEFT = {
    RemovalReason.UNREGISTERED: "unregistered by an operator",
    RemovalReason.CHANNEL_CLOSED: "lost its channel by an operator",
    RemovalReason.EXPIRED: "expired, silent for longer than its timeout, by an operator",
    RemovalReason.BROKER_DOWN: "was reported down by an operator",
    RemovalReason.REPLACED: "was replaced, its address having registered under another name,",
    RemovalReason.LOSS_CONFIRMED: "was confirmed to be lost by an operator",
}
OF_QUEUES = {RemovalReason.GROUP_GONE, RemovalReason.NOT_IN_REGISTRATION, RemovalReason.DELETED_BY_OPERATOR}


@pytest.mark.parametrize("reason", [reason for reason in RemovalReason if reason not in OF_QUEUES])
def test_a_gone_group_is_told_with_how_its_last_broker_left(fleet: Fleet, reason: RemovalReason) -> None:
    fleet.register()
    apply_now(unregister_broker(fleet.state, GROUP, A, reason, cause=CAUSE))
    assert only(fleet).explanation.endswith(f", {LEFT[reason]} at {T0} (because)")
    assert only(fleet).removal_reason == reason.value


def test_a_group_that_is_back_without_the_topic_is_told_both(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    fleet.register(topics=["Other"])
    explanation = only(fleet)
    assert explanation.explanation.endswith(
        f" unregistered at {T10}; it is back: registered and has 1 topic, not this one"
    )
    assert (explanation.since_millis, explanation.removal_reason) == (T10_MILLIS, RemovalReason.UNREGISTERED.value)
    assert (explanation.state, list(explanation.conditions)) == (Why.STATE_GROUP_LEFT, [Why.CONDITION_REGISTERED_AGAIN])


# Never had it


def test_groups_that_never_had_the_topic_are_left_out_where_others_have_it(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=["Other"])
    assert [each.broker_name for each in explain(fleet)] == ["broker-a"]


def test_a_registered_group_without_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=[f"T{number}" for number in range(12)])
    text = "not in the route: broker-b of DefaultCluster is registered and has 12 topics, not this one"
    expected = told(Why.STATE_TOPIC_UNREPORTED, text, broker_name="broker-b")
    assert only(fleet, broker_name="broker-b") == expected


def test_a_group_of_slaves_only_is_told_why_it_has_no_topics(fleet: Fleet) -> None:
    fleet.register(B, 1)
    assert only(fleet).explanation.endswith(
        " has 0 topics, not this one; no master is registered, and slaves bring no topics"
    )
    assert only(fleet).conditions == [Why.CONDITION_NO_MASTER]


def test_a_gone_group_that_is_not_known_to_have_had_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    fleet.unregister()
    fleet.register(B, name="broker-b")
    assert [each.broker_name for each in explain(fleet)] == ["broker-b"]
    gone = only(fleet, broker_name="broker-a")
    assert gone.explanation.endswith(f" unregistered at {T0}; the change log does not show that it had this topic")
    assert (gone.state, list(gone.conditions)) == (Why.STATE_GROUP_LEFT, [Why.CONDITION_TOPIC_NOT_SEEN])


def test_an_unknown_group_has_never_registered_since_the_start(fleet: Fleet) -> None:
    fleet.register()
    text = (
        f"not in the route: broker-x has never registered with this name server since its start at {START}, "
        "revision 0; the change log reaches back to revision 0"
    )
    unknown = told(Why.STATE_NEVER_REGISTERED, text, cluster_name="", broker_name="broker-x")
    assert only(fleet, broker_name="broker-x") == unknown
    in_cluster = only(fleet, broker_name="broker-a", cluster_name="other")
    assert in_cluster.cluster_name == "other"
    assert in_cluster.explanation.startswith("not in the route: broker-a of other has never registered")


def test_of_an_absent_group_the_intent_that_awaits_it_is_told(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    fleet.unregister(B, name="broker-b")
    decided = [
        Intent(IntentKind.WIPE_WRITE_PERM, BrokerKey("other", "broker-a"), "maria", T10_MILLIS, "new disks"),
        Intent(IntentKind.ADD_WRITE_PERM, BrokerKey(CLUSTER, "broker-b"), "maria", T10_MILLIS, ""),
    ]
    fleet.state.intents = IntentTable.of(decided)
    here, there = explain(fleet, broker_name="broker-a")
    assert (here.state, there.state) == (Why.STATE_IN_ROUTE, Why.STATE_NEVER_REGISTERED)
    assert there.cluster_name == "other"
    assert there.conditions == [Why.CONDITION_DRAINED]
    assert there.explanation.endswith(
        f"; when it registers, it is read-only because drained by maria since {T10} (new disks)"
    )
    left = only(fleet, broker_name="broker-b")
    assert (left.state, Why.CONDITION_WRITE_GIVEN in left.conditions) == (Why.STATE_GROUP_LEFT, True)
    assert left.explanation.endswith(f"; when it registers, it has write permission given by maria since {T10}")


def test_of_an_unknown_group_no_more_is_claimed_than_the_change_log_reaches_back_to(fleet: Fleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    for version in range(4):
        fleet.register(topics=[f"T{version}"], version=DataVersion(1_000, version))
    text = only(fleet, broker_name="broker-x").explanation
    assert "never" not in text
    assert text.endswith("; the change log reaches back to revision 2")


def test_an_entry_of_the_journal_has_its_caller_comment_and_reason(fleet: Fleet) -> None:
    unknown = only(fleet, broker_name="broker-x")
    cause = ("a controller", "UnregisterBroker", "because")
    entry = JournalEntry("1-a", 7, T10_MILLIS, *cause, "broker-x left", 1, RemovalReason.BROKER_DOWN.value)
    of_newer_version = only(fleet, broker_name="broker-x")
    before = unknown.explanation
    add_journal_entry(unknown, entry)
    assert unknown.explanation == f"{before}; before that, at {T10}: broker-x left by a controller (because)"
    assert (unknown.since_millis, unknown.removal_reason) == (T10_MILLIS, RemovalReason.BROKER_DOWN.value)
    add_journal_entry(of_newer_version, entry._replace(removal_reason=99))
    assert (of_newer_version.explanation, of_newer_version.removal_reason) == (unknown.explanation, 0)


# Which groups, and how they are found


def test_groups_of_one_name_in_several_clusters_are_told_apart(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    fleet.unregister(B, cluster="other")
    states = [each.state for each in explain(fleet, broker_name="broker-a")]
    assert states == [Why.STATE_IN_ROUTE, Why.STATE_GROUP_LEFT]
    assert only(fleet, broker_name="broker-a", cluster_name="other").state == Why.STATE_GROUP_LEFT


def changes_of_kv(fleet: Fleet, count: int) -> None:
    table = EMPTY
    for number in range(count):
        table = table.with_value("ns", "key", str(number))
        publish_kv_config(fleet.state, table, CAUSE)


def test_all_is_as_of_the_beginning_whatever_changes_meanwhile(fleet: Fleet) -> None:
    fleet.register()
    changes_of_kv(fleet, FEW + 1)
    before = explain(fleet)

    def moment() -> None:
        fleet.unregister()
        fleet.register(B, name="broker-b")

    yield_point = AtYieldPoint(0, moment)
    with yielding(yield_point):
        assert explain(fleet) == before
    assert yield_point.has_come
    assert explain(fleet) != before
