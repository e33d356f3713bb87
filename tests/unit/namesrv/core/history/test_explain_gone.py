"""Why broker groups have left a topic's route, or never were in it."""

from __future__ import annotations

import pytest

from namesrv.core.changes import ChangeLog
from namesrv.core.explain import Condition, Explanation, GroupState, with_journal_entry
from namesrv.core.journal import JournalEntry
from namesrv.core.model import EMPTY, BrokerKey, DataVersion, Intent, IntentKind, IntentTable, RemovalReason
from namesrv.core.operator_changes import publish_kv_config
from namesrv.core.pace import FEW
from namesrv.core.removals import unregister_broker
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.state_changes import apply_now
from tests.support.yield_points import AtYieldPoint, yielding
from tests.unit.namesrv.explaining import CAUSE, GROUP, START, T0, T10, T10_MILLIS, explain, only

# Gone


def test_a_group_that_unregistered_is_told_with_its_brokers(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    text = f"not in the route: the group's last broker, 127.0.0.1:10911 (id 0), unregistered at {T10}"
    assert only(fleet) == Explanation(GROUP, GroupState.GROUP_LEFT, text, T10_MILLIS, RemovalReason.UNREGISTERED)


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
    assert only(fleet).text.endswith(f", {LEFT[reason]} at {T0} (because)")
    assert only(fleet).removal_reason is reason


def test_a_group_that_is_back_without_the_topic_is_told_both(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(10)
    fleet.unregister()
    fleet.register(topics=["Other"])
    explanation = only(fleet)
    assert explanation.text.endswith(f" unregistered at {T10}; it is back: registered and has 1 topic, not this one")
    assert (explanation.since_millis, explanation.removal_reason) == (T10_MILLIS, RemovalReason.UNREGISTERED)
    assert (explanation.state, explanation.conditions) == (GroupState.GROUP_LEFT, (Condition.REGISTERED_AGAIN,))


# Never had it


def test_groups_that_never_had_the_topic_are_left_out_where_others_have_it(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=["Other"])
    assert [each.broker for each in explain(fleet)] == [GROUP]


def test_a_registered_group_without_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b", topics=[f"T{number}" for number in range(12)])
    text = "not in the route: broker-b of DefaultCluster is registered and has 12 topics, not this one"
    told = Explanation(BrokerKey(CLUSTER, "broker-b"), GroupState.TOPIC_UNREPORTED, text)
    assert only(fleet, broker_name="broker-b") == told


def test_a_group_of_slaves_only_is_told_why_it_has_no_topics(fleet: Fleet) -> None:
    fleet.register(B, 1)
    assert only(fleet).text.endswith(" has 0 topics, not this one; no master is registered, and slaves bring no topics")
    assert only(fleet).conditions == (Condition.NO_MASTER,)


def test_a_gone_group_that_is_not_known_to_have_had_the_topic_is_told_if_it_is_asked_for(fleet: Fleet) -> None:
    fleet.register(topics=["Other"])
    fleet.unregister()
    fleet.register(B, name="broker-b")
    assert [each.broker.broker_name for each in explain(fleet)] == ["broker-b"]
    gone = only(fleet, broker_name="broker-a")
    assert gone.text.endswith(f" unregistered at {T0}; the change log does not show that it had this topic")
    assert (gone.state, gone.conditions) == (GroupState.GROUP_LEFT, (Condition.TOPIC_NOT_SEEN,))


def test_an_unknown_group_has_never_registered_since_the_start(fleet: Fleet) -> None:
    fleet.register()
    text = (
        f"not in the route: broker-x has never registered with this name server since its start at {START}, "
        "revision 0; the change log reaches back to revision 0"
    )
    unknown = Explanation(BrokerKey("", "broker-x"), GroupState.NEVER_REGISTERED, text)
    assert only(fleet, broker_name="broker-x") == unknown
    in_cluster = only(fleet, broker_name="broker-a", cluster_name="other")
    assert in_cluster.broker == BrokerKey("other", "broker-a")
    assert in_cluster.text.startswith("not in the route: broker-a of other has never registered")


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
    assert (here.state, there.state) == (GroupState.IN_ROUTE, GroupState.NEVER_REGISTERED)
    assert there.broker == BrokerKey("other", "broker-a")
    assert there.conditions == (Condition.DRAINED,)
    assert there.text.endswith(f"; when it registers, it is read-only because drained by maria since {T10} (new disks)")
    left = only(fleet, broker_name="broker-b")
    assert (left.state, Condition.WRITE_GIVEN in left.conditions) == (GroupState.GROUP_LEFT, True)
    assert left.text.endswith(f"; when it registers, it has write permission given by maria since {T10}")


def test_of_an_unknown_group_no_more_is_claimed_than_the_change_log_reaches_back_to(fleet: Fleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    for version in range(4):
        fleet.register(topics=[f"T{version}"], version=DataVersion(1_000, version))
    text = only(fleet, broker_name="broker-x").text
    assert "never" not in text
    assert text.endswith("; the change log reaches back to revision 2")


def test_an_entry_of_the_journal_has_its_caller_comment_and_reason(fleet: Fleet) -> None:
    unknown = only(fleet, broker_name="broker-x")
    cause = ("a controller", "UnregisterBroker", "because")
    entry = JournalEntry("1-a", 7, T10_MILLIS, *cause, "broker-x left", 1, RemovalReason.BROKER_DOWN.value)
    told = with_journal_entry(unknown, entry)
    assert told.text == f"{unknown.text}; before that, at {T10}: broker-x left by a controller (because)"
    assert (told.since_millis, told.removal_reason) == (T10_MILLIS, RemovalReason.BROKER_DOWN)
    of_newer_version = with_journal_entry(unknown, entry._replace(removal_reason=99))
    assert (of_newer_version.text, of_newer_version.removal_reason) == (told.text, None)


# Which groups, and how they are found


def test_groups_of_one_name_in_several_clusters_are_told_apart(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, cluster="other")
    fleet.unregister(B, cluster="other")
    states = [each.state for each in explain(fleet, broker_name="broker-a")]
    assert states == [GroupState.IN_ROUTE, GroupState.GROUP_LEFT]
    assert only(fleet, broker_name="broker-a", cluster_name="other").state is GroupState.GROUP_LEFT


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
