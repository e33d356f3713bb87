"""Why broker groups are in a topic's route, left out of it, or gone: one sentence for each reason there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1.admin_service_pb2 import RouteExplanation as Why

from namesrv import limits
from namesrv.core.changes import Cause, ChangeLog
from namesrv.core.errors import Reason
from namesrv.core.explain import MAX_TEXT_LENGTH, CurrentState, Question, add_journal_entry, explain_route
from namesrv.core.journal import JournalEntry
from namesrv.core.model import (
    Behaviour,
    BrokerKey,
    DataVersion,
    Doubt,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    IntentTable,
    KvConfigTable,
    RemovalReason,
)
from namesrv.core.pace import FEW
from namesrv.core.removals import IntentsChange, TopicDeletion, unregister_broker
from namesrv.core.state import NamesrvIdentity
from namesrv.core.tables import removal_reason
from namesrv.storage.database import DATABASE_FILE
from namesrv.storage.journal import Journal
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.support.yield_points import AtYieldPoint, yielding
from tests.unit.namesrv.servicers import STARTED_AT, admin_servicer
from tests.unit.namesrv.storage.storage_inputs import opened

CAUSE = Cause("test", "an operator", "because")
GROUP = BrokerKey(CLUSTER, "broker-a")
NEWER = DataVersion(2_000, 2)
START = "2023-11-14T22:13:20.000Z"
T0 = "2023-11-14T22:30:00.000Z"
"""When a fleet's clock begins."""
T10 = "2023-11-14T22:30:10.000Z"
"""Ten seconds later."""
T0_MILLIS = STARTED_AT + 1_000_000
T10_MILLIS = T0_MILLIS + 10_000


def explain(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> list[Why]:
    now = CurrentState(fleet.state, STARTED_AT, Question(topic, **question))
    return explain_route(now, fleet.state.change_log.newest_first())


def only(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> Why:
    (explanation,) = explain(fleet, topic, **question)
    return explanation


def decide(fleet: Fleet, kind: IntentKind, key: IntentKey) -> None:
    intent = Intent(kind, key, "an operator", fleet.clock.wall_millis(), "because")
    apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(intent), CAUSE))


def hold(fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None) -> None:
    decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, cluster))


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
    fleet.state.liveness.end_channel(channel_id)
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


def test_a_topic_that_a_group_dropped_after_its_return_is_told_as_dropped() -> None:
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register()
    fleet.unregister()
    fleet.register()
    fleet.register(topics=["Other"], version=NEWER)
    assert only(fleet).state == Why.STATE_TOPIC_DROPPED


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


def test_a_group_that_is_back_and_never_had_the_topic_is_registered(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    fleet.unregister()
    fleet.register(topics=["Other"])
    assert only(fleet, broker_name="broker-a").state == Why.STATE_TOPIC_UNREPORTED


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


def test_all_is_as_of_the_beginning_whatever_changes_meanwhile(fleet: Fleet) -> None:
    fleet.register()
    for number in range(FEW + 1):
        fleet.state.publish_kv_config(KvConfigTable().with_value("ns", "key", str(number)), CAUSE)
    before = explain(fleet)

    def moment() -> None:
        fleet.unregister()
        fleet.register(B, name="broker-b")

    yield_point = AtYieldPoint(0, moment)
    with yielding(yield_point):
        assert explain(fleet) == before
    assert yield_point.has_come
    assert explain(fleet) != before


# The call, which adds what the journal has of groups that memory does not know.


def call(
    fleet: Fleet, request: pb.ExplainTopicRouteRequest, journal: Journal | None = None
) -> pb.ExplainTopicRouteResponse:
    return asyncio.run(admin_servicer(fleet, journal=journal).ExplainTopicRoute(request, CONTEXT))


def told_of(fleet: Fleet, journal: Journal, broker_name: str) -> Why:
    (told,) = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name=broker_name), journal).explanations
    return told


def test_the_answer_has_the_explanations_of_what_is_asked_for(fleet: Fleet) -> None:
    fleet.register(zone_name="z1")
    fleet.register(B, name="broker-b")
    fleet.register(B, name="broker-b", cluster="other")
    fleet.unregister(B, name="broker-b")
    questions: list[dict[str, str]] = [{}, {"zone_name": "z1"}, {"broker_name": "broker-b", "cluster_name": "other"}]
    for question in questions:
        answer = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest", **question))
        assert (answer.header, list(answer.explanations)) == (fleet.state.header(), explain(fleet, **question))


def test_an_answer_tells_of_so_many_groups_and_not_of_one_more(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="Unknown")
    for number in range(limits.MAX_EXPLANATIONS + 1):
        if number == limits.MAX_EXPLANATIONS:
            assert len(call(fleet, request).explanations) == limits.MAX_EXPLANATIONS
        fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"b-{number}", topics=[])
    with refuses(Reason.LIMIT_EXCEEDED, match="broker_name"):
        call(fleet, request)


def test_an_answer_of_the_longest_texts_is_below_what_clients_take() -> None:
    row = Why(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        state=Why.STATE_IN_ROUTE,
        conditions=Why.Condition.keys(),
        explanation="\U0001f600" * MAX_TEXT_LENGTH,
        since_millis=2**63 - 1,
        removal_reason="REMOVAL_REASON_EXPIRED",
    )
    assert pb.ExplainTopicRouteResponse(explanations=[row] * limits.MAX_EXPLANATIONS).ByteSize() < 4 * 1024 * 1024


def test_an_explanation_with_two_long_comments_is_cut(fleet: Fleet) -> None:
    comment = "\U0001f600" * limits.MAX_COMMENT_LENGTH
    fleet.register()
    fleet.register(B, 1)
    hold_all = Intent(IntentKind.TOPIC_HOLD, HoldKey("TopicTest", None), "an operator", T0_MILLIS, comment)
    cause = Cause("DeleteTopic", "an operator", comment)
    apply_now(TopicDeletion(fleet.state, "TopicTest", None, cause))
    assert len(only(fleet).explanation) < MAX_TEXT_LENGTH
    apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(hold_all), cause))
    text = only(fleet).explanation
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("...")


# Groups that left before the start.


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[tuple[Fleet, Journal]]:
    """A fleet after a restart. The life before it knew broker-a, whose channel ended, and broker-b, which stayed."""
    with opened(tmp_path) as database:
        former, fleet = Fleet(), Fleet()
        journal = Journal(database, former.state.identity.epoch, 10**6)
        former.state.change_log.listen(journal.on_change)
        channel = former.state.open_channel()
        former.register(channel_id=channel)
        former.register(B, name="broker-b")
        former.clock.advance(10)
        former.end_channel(channel)
        former.register(B, name="broker-b", topics=["TopicTest", "Other"], version=NEWER)
        asyncio.run(journal.write_last())
        fleet.state.identity = NamesrvIdentity("ns-test", "000000000000002-00000000")
        yield fleet, Journal(database, fleet.state.identity.epoch, 10**6)


def test_a_group_that_left_before_the_restart_is_told_from_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    why = told_of(*restarted, "broker-a")
    before, _, entry = why.explanation.partition("; before that, ")
    assert before == only(restarted[0], broker_name="broker-a").explanation
    assert entry == (
        f"at {T10}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster lost its channel: "
        "group gone; 1 topic lost its queues on it (TopicTest)"
    )
    assert (why.state, why.since_millis) == (Why.STATE_NEVER_REGISTERED, T10_MILLIS)
    assert why.removal_reason == route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED


def test_a_group_that_was_there_at_the_end_of_the_last_life_did_not_leave(restarted: tuple[Fleet, Journal]) -> None:
    why = told_of(*restarted, "broker-b")
    assert why.explanation.endswith(
        "broker-b (127.0.0.1:20911, id 0) of DefaultCluster registered: 1 topic put (Other)"
    )
    assert why.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


def test_a_group_that_memory_has_forgotten_is_told_from_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    fleet, journal = restarted
    fleet.state.change_log = ChangeLog(max_changes=1)
    fleet.state.change_log.listen(journal.on_change)
    fleet.register()
    fleet.unregister()
    fleet.register(B, name="broker-b")
    asyncio.run(journal.write_last())
    before, _, entry = told_of(fleet, journal, "broker-a").explanation.partition("; before that, ")
    assert before.endswith("; the change log reaches back to revision 2")
    assert "never" not in before
    assert entry.startswith(f"at {T0}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster unregistered: ")


def test_a_group_in_memory_or_in_no_entry_is_explained_without_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    fleet, journal = restarted
    fleet.register(name="broker-c")
    for broker_name in ("broker-c", "broker-x"):
        assert told_of(fleet, journal, broker_name).explanation == only(fleet, broker_name=broker_name).explanation
    everything = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"), journal)
    assert [each.broker_name for each in everything.explanations] == ["broker-c"]


def test_a_journal_that_cannot_be_read_takes_nothing_from_an_explanation(
    restarted: tuple[Fleet, Journal], tmp_path: Path
) -> None:
    (tmp_path / DATABASE_FILE).rename(tmp_path / "away")
    assert told_of(*restarted, "broker-a").explanation == only(restarted[0], broker_name="broker-a").explanation
