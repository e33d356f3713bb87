"""Why broker groups are or are not in a topic's route: one sentence for each reason there is."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.behaviour import Behaviour
from namesrv.core.change_log import ChangeLog
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.explain_route import MAX_TEXT_LENGTH, WALK_SLICE, Explanation, Question, explain_route
from namesrv.core.intents import HoldKey, Intent, IntentKey, IntentKind
from namesrv.core.kv_config import EMPTY
from namesrv.core.records import BrokerKey, DataVersion, RemovalReason
from namesrv.core.steps import finish
from namesrv.server import limits
from namesrv.server.explain_calls import ExplainCalls
from namesrv.server.rpc import Context
from tests.unit.namesrv.fleet import CLUSTER, A, B, Fleet

CONTEXT = cast("Context", None)
"""The call does not ask for it."""
CAUSE = Cause("test", "an operator", "because")
GROUP = BrokerKey(CLUSTER, "broker-a")
NEWER = DataVersion(2_000, 2)
STARTED_AT = 1_700_000_000_000
START = "2023-11-14T22:13:20.000Z"
T0 = "2023-11-14T22:30:00.000Z"
"""When a fleet's clock begins."""
T10 = "2023-11-14T22:30:10.000Z"
"""Ten seconds later."""
T0_MILLIS = STARTED_AT + 1_000_000
T10_MILLIS = T0_MILLIS + 10_000


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def explain(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> list[Explanation]:
    return finish(explain_route(fleet.manager, STARTED_AT, Question(topic, **question)))


def only(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> Explanation:
    (explanation,) = explain(fleet, topic, **question)
    return explanation


def decide(fleet: Fleet, kind: IntentKind, key: IntentKey, comment: str = "because") -> None:
    intent = Intent(kind, key, "an operator", fleet.clock.wall_millis(), comment)
    finish(fleet.manager.publish_intents(fleet.manager.intents.with_intent(intent), CAUSE))


def hold(fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None) -> None:
    decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, cluster))


def release(fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None) -> None:
    finish(fleet.manager.publish_intents(fleet.manager.intents.without([HoldKey(topic, cluster)]), CAUSE))


# In the route


def test_a_group_in_the_route_is_told_with_its_queues_and_since_when(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (8, 1, 6, 0))])
    fleet.clock.advance(10)
    fleet.register(B, 1)
    text = "in the route with 8 queues to read and 1 queue to write"
    assert explain(fleet) == [Explanation(GROUP, True, text, T0_MILLIS)]


def test_since_when_is_when_the_queues_changed_last(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.register_topic("TopicTest", {GROUP: (8, 8, 6, 0)})
    assert only(fleet).since_millis == T10_MILLIS


def test_since_when_is_not_known_of_what_the_change_log_has_dropped(fleet: Fleet) -> None:
    fleet.manager.change_log = ChangeLog(max_changes=1)
    fleet.register()
    fleet.register(B, name="broker-b", topics=["Other"])
    assert only(fleet) == Explanation(GROUP, True, "in the route with 4 queues to read and 4 queues to write")


def test_a_drained_group_is_read_only_by_whom_since_when_and_why(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    decide(fleet, IntentKind.WIPE_WRITE_PERM, GROUP)
    explanation = only(fleet)
    assert explanation.in_route
    drained = f"read-only because drained by an operator since {T10} (because)"
    assert explanation.text == f"in the route with 4 queues to read; {drained}"
    assert explanation.since_millis == T10_MILLIS


def test_a_decision_without_comment_has_no_empty_brackets(fleet: Fleet) -> None:
    fleet.register()
    decide(fleet, IntentKind.WIPE_WRITE_PERM, GROUP, comment="")
    assert only(fleet).text.endswith(f"; read-only because drained by an operator since {T0}")


def test_a_grant_of_write_permission_is_told_instead_of_what_is_reported(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    decide(fleet, IntentKind.ADD_WRITE_PERM, GROUP)
    text = only(fleet).text
    assert text.startswith("in the route with 4 queues to read and 4 queues to write; ")
    assert text.endswith(f"; write permission given by an operator since {T0} (because)")
    assert "read-only" not in text


def test_a_topic_that_is_reported_without_write_is_read_only_for_that(fleet: Fleet) -> None:
    fleet.register(topics=[("TopicTest", (4, 4, 4, 0))])
    reported = "read-only because the broker reports permission 4, without write"
    assert only(fleet).text == f"in the route with 4 queues to read; {reported}"


def test_a_group_without_a_master_can_only_be_read_from_and_since_when(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, 1)
    fleet.clock.advance(10)
    fleet.unregister()
    why = f"no master is registered since {T10}, so it can only be read from: writers need broker id 0"
    text = f"in the route with 4 queues to read; {why}"
    assert only(fleet).text == text
    assert only(fleet, broker_name="broker-a", cluster_name=CLUSTER).text == text


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
    assert only(acting_fleet("TopicTest")) == Explanation(GROUP, True, text, T10_MILLIS)


def test_no_slave_stands_in_where_the_members_of_a_group_find_each_other() -> None:
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    assert "no master is registered" in only(acting_fleet(topic), topic).text


def test_a_broker_that_the_guard_keeps_is_unconfirmed_and_since_when(fleet: Fleet) -> None:
    channel = fleet.manager.open_channel()
    for number in range(4):
        fleet.register(f"127.0.0.1:1{number}911", name=f"broker-{number}", channel_id=channel)
    fleet.clock.advance(10)
    fleet.end_channel(channel)
    guarded = (
        f"; unconfirmed since {T10}: the mass-loss guard keeps 127.0.0.1:12911 (id 0), "
        "lost together with too many others"
    )
    explanation = only(fleet, broker_name="broker-2", cluster_name=CLUSTER)
    assert explanation.in_route
    assert explanation.text.endswith(guarded)
    fleet.register("127.0.0.1:12911", name="broker-2")
    assert "unconfirmed" not in only(fleet, broker_name="broker-2").text


def test_a_broker_that_only_a_snapshot_file_knows_is_unconfirmed_since_the_start(fleet: Fleet) -> None:
    for number in range(5):
        fleet.register(f"127.0.0.1:1{number}911", number)
    restarted = Fleet()
    restarted.manager.load_snapshot(fleet.manager.snapshot().messages())
    explanation = only(restarted)
    assert explanation.text == (
        "in the route with 4 queues to read and 4 queues to write; "
        f"unconfirmed since the name server's start at {START}: 127.0.0.1:10911 (id 0), 127.0.0.1:11911 (id 1), "
        "127.0.0.1:12911 (id 2) and 2 more has not registered since"
    )
    assert explanation.since_millis is None


# Left out for a zone


def test_a_group_of_another_zone_is_left_out_for_that_and_in_the_route_for_everybody_else(fleet: Fleet) -> None:
    fleet.register(zone_name="z1")
    fleet.register(B, name="broker-b")
    of_z1, of_none = explain(fleet, zone_name="Z2")
    assert (of_z1.in_route, of_none.in_route) == (False, False)
    assert of_z1.text == "left out of the route for zone Z2: the group is of zone z1, and its master is live"
    assert of_none.text == "left out of the route for zone Z2: the group has no zone, and its master is live"
    assert [each.in_route for each in explain(fleet, zone_name="Z1")] == [True, False]
    assert [each.in_route for each in explain(fleet)] == [True, True]


def test_a_group_of_another_zone_whose_slave_stands_in_is_left_out_too() -> None:
    explanation = only(acting_fleet("TopicTest"), zone_name="z2")
    assert explanation.text.endswith("the group is of zone z1, and a slave stands in for its master")


def test_a_group_without_a_master_is_in_the_route_of_every_zone(fleet: Fleet) -> None:
    fleet.register(zone_name="z1")
    fleet.register(B, 1)
    fleet.unregister()
    assert only(fleet, zone_name="z2").in_route


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
    assert only(fleet) == Explanation(GROUP, False, text, T10_MILLIS, RemovalReason.DELETED_BY_OPERATOR)


def test_a_topic_that_was_held_before_it_came_has_never_left(fleet: Fleet) -> None:
    hold(fleet)
    fleet.register()
    explanation = only(fleet)
    assert explanation.text.startswith("not in the route: the broker reports it, but the topic is held back")
    assert explanation.removal_reason is None


def test_a_topic_held_in_one_cluster_is_in_the_route_of_another(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    hold(fleet, cluster="other")
    assert [(each.broker.cluster_name, each.in_route) for each in explain(fleet)] == [(CLUSTER, True), ("other", False)]


def test_a_released_topic_is_in_the_route_again(fleet: Fleet) -> None:
    fleet.register()
    hold(fleet)
    release(fleet)
    assert only(fleet).in_route


def test_a_deleted_topic_is_told_by_whom_when_and_why_and_how_it_comes_back(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    finish(fleet.manager.delete_topic("TopicTest", None, CAUSE))
    text = (
        f"not in the route: deleted by an operator at {T10} (because); "
        "it comes back when the broker registers it with another DataVersion"
    )
    assert only(fleet) == Explanation(GROUP, False, text, T10_MILLIS, RemovalReason.DELETED_BY_OPERATOR)
    fleet.register(version=NEWER)
    assert only(fleet).in_route


def test_a_deleted_topic_does_not_come_back_while_it_is_held(fleet: Fleet) -> None:
    fleet.register()
    finish(fleet.manager.delete_topic("TopicTest", None, CAUSE))
    hold(fleet)
    assert only(fleet).text.endswith(
        "; if the broker reports it, it stays out: the topic is held back in all clusters "
        f"by an operator since {T0} (because)"
    )


def test_a_topic_that_is_not_in_the_registration_any_more_is_told_so() -> None:
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=["TopicTest", "Other"])
    fleet.clock.advance(10)
    fleet.register(topics=["Other"], version=NEWER)
    text = f"not in the route: not in the registration that the broker sent at {T10}, nor in one since"
    assert only(fleet) == Explanation(GROUP, False, text, T10_MILLIS, RemovalReason.NOT_IN_REGISTRATION)


# Gone


def test_a_group_that_unregistered_is_told_with_its_brokers(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    text = f"not in the route: the group's last broker, 127.0.0.1:10911 (id 0), unregistered at {T10}"
    assert only(fleet) == Explanation(GROUP, False, text, T10_MILLIS, RemovalReason.UNREGISTERED)


def test_a_group_that_expired_is_told_so(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, 1)
    fleet.clock.advance(121)
    assert len(fleet.scan()) == 2
    explanation = only(fleet)
    assert explanation.text == (
        "not in the route: the group's last brokers, 127.0.0.1:10911 (id 0), 127.0.0.1:20911 (id 1), "
        "expired, silent for longer than its timeout, at 2023-11-14T22:32:01.000Z"
    )
    assert explanation.removal_reason is RemovalReason.EXPIRED


def test_a_group_whose_channel_ended_is_told_so(fleet: Fleet) -> None:
    channel = fleet.manager.open_channel()
    fleet.register(channel_id=channel)
    fleet.clock.advance(10)
    fleet.end_channel(channel)
    text = f"not in the route: the group's last broker, 127.0.0.1:10911 (id 0), lost its channel at {T10}"
    assert only(fleet) == Explanation(GROUP, False, text, T10_MILLIS, RemovalReason.CHANNEL_CLOSED)


def test_a_group_that_was_reported_down_is_told_by_whom(fleet: Fleet) -> None:
    fleet.register()
    cause = Cause("UnregisterBroker", "a controller")
    finish(fleet.manager.unregister_broker(GROUP, A, RemovalReason.BROKER_DOWN, cause=cause))
    explanation = only(fleet)
    assert explanation.text.endswith(f" was reported down by a controller at {T0}")
    assert explanation.removal_reason is RemovalReason.BROKER_DOWN


def test_a_group_whose_address_registered_under_another_name_was_replaced(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.register(name="broker-b")
    old, new = explain(fleet)
    assert old.text.endswith(f" was replaced, its address having registered under another name, at {T10}")
    assert old.removal_reason is RemovalReason.REPLACED
    assert (new.broker.broker_name, new.in_route) == ("broker-b", True)


def test_a_group_whose_loss_was_confirmed_is_told_by_whom_and_why(fleet: Fleet) -> None:
    fleet.register()
    restarted = Fleet()
    restarted.manager.load_snapshot(fleet.manager.snapshot().messages())
    finish(restarted.manager.confirm_broker_loss(lambda _: True, CAUSE))
    explanation = only(restarted)
    assert explanation.text.endswith(f" was confirmed to be lost by an operator at {T0} (because)")
    assert explanation.removal_reason is RemovalReason.LOSS_CONFIRMED


def test_every_reason_by_which_a_broker_leaves_can_be_told(fleet: Fleet) -> None:
    of_queues = {RemovalReason.GROUP_GONE, RemovalReason.NOT_IN_REGISTRATION, RemovalReason.DELETED_BY_OPERATOR}
    texts = set()
    for reason in set(RemovalReason) - of_queues:
        fleet.register()
        finish(fleet.manager.unregister_broker(GROUP, A, reason))
        explanation = only(fleet)
        assert explanation.removal_reason is reason
        texts.add(explanation.text)
    assert len(texts) == len(RemovalReason) - len(of_queues)


def test_a_group_that_is_back_without_the_topic_is_told_both(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    fleet.register(topics=["Other"])
    explanation = only(fleet)
    assert explanation.text.endswith(f" unregistered at {T10}; it is back: registered and has 1 topic, not this one")
    assert (explanation.since_millis, explanation.removal_reason) == (T10_MILLIS, RemovalReason.UNREGISTERED)


def test_a_group_that_was_deleted_from_and_then_went_has_gone(fleet: Fleet) -> None:
    fleet.register()
    finish(fleet.manager.delete_topic("TopicTest", None, CAUSE))
    fleet.unregister()
    assert only(fleet).removal_reason is RemovalReason.UNREGISTERED


def test_a_gone_group_is_told_that_a_hold_would_keep_the_topic_out(fleet: Fleet) -> None:
    fleet.register()
    hold(fleet)
    fleet.unregister()
    assert "; if the broker reports it, it stays out: the topic is held back in all clusters" in only(fleet).text


# Never had it


def test_groups_that_never_had_the_topic_are_left_out_where_others_have_it(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=["Other"])
    assert [each.broker for each in explain(fleet)] == [GROUP]


def test_a_registered_group_without_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=[f"T{number}" for number in range(12)])
    text = "not in the route: broker-b of DefaultCluster is registered and has 12 topics, not this one"
    assert only(fleet, broker_name="broker-b") == Explanation(BrokerKey(CLUSTER, "broker-b"), False, text)


def test_all_registered_groups_are_told_if_none_ever_had_the_topic(fleet: Fleet) -> None:
    fleet.register(topics=["One"])
    fleet.register(B, name="broker-b", topics=["Two"])
    told = explain(fleet, "Unknown")
    assert [each.broker.broker_name for each in told] == ["broker-a", "broker-b"]
    assert not any(each.in_route for each in told)


def test_a_group_of_slaves_only_is_told_why_it_has_no_topics(fleet: Fleet) -> None:
    fleet.register(B, 1)
    assert only(fleet).text.endswith(" has 0 topics, not this one; no master is registered, and slaves bring no topics")


def test_a_group_that_never_had_the_topic_is_told_that_a_hold_would_keep_it_out(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    hold(fleet)
    assert "; if the broker reports it, it stays out: the topic is held back in all clusters" in only(fleet).text


def test_an_empty_name_server_has_nothing_to_tell(fleet: Fleet) -> None:
    assert explain(fleet) == []


def test_a_gone_group_that_is_not_known_to_have_had_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    fleet.unregister()
    fleet.register(B, name="broker-b")
    assert [each.broker.broker_name for each in explain(fleet)] == ["broker-b"]
    assert only(fleet, broker_name="broker-a").text.endswith(
        f" unregistered at {T0}; the change log does not show that it had this topic"
    )


def test_a_group_that_went_and_came_back_without_ever_having_the_topic_is_just_registered(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    fleet.unregister()
    fleet.register(topics=["Other"])
    assert only(fleet, broker_name="broker-a").removal_reason is None


def test_an_unknown_group_has_never_registered_since_the_start(fleet: Fleet) -> None:
    fleet.register()
    text = (
        f"not in the route: broker-x has never registered with this name server since its start at {START}, "
        "revision 0; the change log reaches back to revision 0"
    )
    assert only(fleet, broker_name="broker-x") == Explanation(BrokerKey("", "broker-x"), False, text)
    in_cluster = only(fleet, broker_name="broker-a", cluster_name="other")
    assert in_cluster.broker == BrokerKey("other", "broker-a")
    assert in_cluster.text.startswith("not in the route: broker-a of other has never registered")


def test_of_an_unknown_group_no_more_is_claimed_than_the_change_log_reaches_back_to(fleet: Fleet) -> None:
    fleet.manager.change_log = ChangeLog(max_changes=2)
    for version in range(4):
        fleet.register(topics=[f"T{version}"], version=DataVersion(1_000, version))
    text = only(fleet, broker_name="broker-x").text
    assert "never" not in text
    assert text.endswith("; the change log reaches back to revision 2")


# Which groups, and how they are found


def test_groups_of_one_name_in_several_clusters_are_told_apart(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    fleet.unregister(B, cluster="other")
    assert [each.in_route for each in explain(fleet, broker_name="broker-a")] == [True, False]
    assert [each.in_route for each in explain(fleet, broker_name="broker-a", cluster_name="other")] == [False]


def changes_of_kv(fleet: Fleet, count: int) -> None:
    table = EMPTY
    for number in range(count):
        table = table.with_value("ns", "key", str(number))
        fleet.manager.publish_kv_config(table, CAUSE)


def steps_taken(fleet: Fleet, **question: Any) -> int:
    return sum(1 for _ in explain_route(fleet.manager, STARTED_AT, Question("TopicTest", **question)))


def test_the_change_log_is_walked_in_slices_and_no_further_than_needed(fleet: Fleet) -> None:
    changes_of_kv(fleet, 2 * WALK_SLICE)
    fleet.register()
    assert steps_taken(fleet) >= 2
    assert steps_taken(fleet, broker_name="broker-a") >= 2
    assert steps_taken(fleet, broker_name="broker-a", cluster_name=CLUSTER) == 0


def test_all_is_as_of_the_first_step_whatever_changes_meanwhile(fleet: Fleet) -> None:
    fleet.register()
    changes_of_kv(fleet, WALK_SLICE)
    before = explain(fleet)
    steps = explain_route(fleet.manager, STARTED_AT, Question("TopicTest"))
    next(steps)
    fleet.unregister()
    fleet.register(B, name="broker-b")
    assert finish(steps) == before


# The call


def call(fleet: Fleet, request: pb.ExplainTopicRouteRequest) -> pb.ExplainTopicRouteResponse:
    return asyncio.run(ExplainCalls(fleet.manager, STARTED_AT).ExplainTopicRoute(request, CONTEXT))


def test_the_answer_carries_all_that_is_known(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    fleet.unregister()
    answer = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"))
    assert answer.header == fleet.manager.header()
    gone, present = answer.explanations
    assert (gone.cluster_name, gone.broker_name, gone.in_route) == (CLUSTER, "broker-a", False)
    assert gone.removal_reason == route_data_pb2.REMOVAL_REASON_UNREGISTERED
    assert (gone.since_millis, present.since_millis) == (T0_MILLIS, T0_MILLIS)
    assert present == pb.RouteExplanation(
        cluster_name=CLUSTER,
        broker_name="broker-b",
        in_route=True,
        explanation="in the route with 4 queues to read and 4 queues to write",
        since_millis=T0_MILLIS,
    )


def test_what_is_not_known_is_absent_from_the_answer(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-x")
    (explanation,) = call(fleet, request).explanations
    assert not explanation.HasField("since_millis")
    assert explanation.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("topic", pb.ExplainTopicRouteRequest()),
        ("topic", pb.ExplainTopicRouteRequest(topic="no topic")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", cluster_name="c")),
        ("cluster_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="b", cluster_name="")),
        ("zone_name", pb.ExplainTopicRouteRequest(topic="T", zone_name="no zone")),
    ],
)
def test_a_bad_field_is_refused_by_name(fleet: Fleet, field: str, request_: pb.ExplainTopicRouteRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        call(fleet, request_)
    assert caught.value.field == field


def test_an_answer_tells_of_so_many_groups_and_not_of_one_more(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="Unknown")
    for number in range(limits.MAX_EXPLANATIONS + 1):
        if number == limits.MAX_EXPLANATIONS:
            assert len(call(fleet, request).explanations) == limits.MAX_EXPLANATIONS
        fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"b-{number}", topics=[])
    with pytest.raises(LimitExceeded, match="broker_name"):
        call(fleet, request)


def test_an_answer_of_the_longest_texts_is_below_what_clients_take() -> None:
    row = pb.RouteExplanation(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        in_route=True,
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
    finish(fleet.manager.delete_topic("TopicTest", None, cause))
    assert len(only(fleet).text) < MAX_TEXT_LENGTH
    finish(fleet.manager.publish_intents(fleet.manager.intents.with_intent(hold_all), cause))
    text = only(fleet).text
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("...")
