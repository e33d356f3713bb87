"""What watches are told: what changed or left a route, what is absent, and bookmarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from namesrv.core import slices
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.model import EMPTY, ORDER_TOPIC_CONFIG, BrokerKey, DataVersion, Registration
from namesrv.core.operator_changes import TopicDeletion, publish_behaviour, publish_kv_config
from namesrv.core.policy import Behaviour
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.slices import run_steps
from namesrv.core.watch import affected, messages
from namesrv.core.watch.subscription import Subscription, SubscriptionChange
from tests.properties import machine_test
from tests.support.core_fleet import CLUSTER, VERSION, A, B
from tests.support.state_changes import apply_now
from tests.unit.namesrv.watch_machine import WatchesAgainstLookups
from tests.unit.namesrv.worlds.watched_fleet import WatchedFleet, reasons

CAUSE = Cause("test")


def test_what_left_a_route_is_said_with_its_reason_also_if_more_happened_since(fleet: WatchedFleet) -> None:
    fleet.register(B, 1, ())
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.clock.advance(100)
    fleet.query(B, 1)
    fleet.clock.advance(21)
    fleet.scan()
    fleet.unregister(B)
    told = fleet.told(watch)["T1"]
    assert not told.HasField("route")
    assert sorted(reasons(told)) == [(A, "EXPIRED"), (B, "UNREGISTERED")]


def test_only_the_latest_removals_of_a_topic_are_kept(fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affected, "MAX_REMOVALS", 2)
    watch = fleet.watch("T1")
    fleet.told(watch)
    for number in range(3):
        fleet.register(f"10.0.1.{number}:1", topics=["T1"], name="broker-b")
        fleet.unregister(f"10.0.1.{number}:1", name="broker-b")
        fleet.woken()
    assert [len(removals) for removals in watch.pending.values()] == [2]
    assert reasons(fleet.told(watch)["T1"]) == [(f"10.0.1.{number}:1", "UNREGISTERED") for number in (1, 2)]


def test_a_deleted_topic_left_its_group_and_no_broker_left(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    apply_now(TopicDeletion(fleet.state, "T1", None, CAUSE))
    told = fleet.told(watch)["T1"]
    assert [(gone.broker_name, gone.HasField("broker_id")) for gone in told.removals] == [("broker-a", False)]
    assert reasons(told) == [("", "DELETED_BY_OPERATOR")]


def test_a_deleted_topic_that_came_back_from_another_broker_of_its_group_is_said_to_have_been_deleted(
    fleet: WatchedFleet,
) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    apply_now(TopicDeletion(fleet.state, "T1", None, CAUSE))
    fleet.unregister(A)
    fleet.register(B, topics=["T1"])
    told = fleet.told(watch)["T1"]
    assert [broker.broker_addr for broker in told.route.broker_datas[0].broker_addrs] == [B]
    assert reasons(told) == [("", "DELETED_BY_OPERATOR")]


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_bookmark_says_whether_the_name_server_is_warm(fleet: WatchedFleet, *, is_warm: bool) -> None:
    fleet.is_warm = is_warm
    message = fleet.message(fleet.watch("T1"))
    assert message is not None
    assert (message.bookmark, message.request_count, message.warm) == (True, 1, is_warm)
    assert message.HasField("warm")


def test_a_full_message_is_followed_by_a_bookmark_also_if_nothing_is_to_be_said_of_what_it_left_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server is not warm, so that it keeps silent about a topic that is not there."""
    monkeypatch.setattr(messages, "MESSAGE_TOPICS", 2)
    fleet = WatchedFleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.is_warm = False
    for addr, name in ((A, "broker-a"), (B, "broker-b")):
        fleet.register(addr, topics=["T1", "T2", "T3"], name=name)
    named, by_prefix = fleet.watch("T1", "T2", "T4"), fleet.watch(prefixes=["T1", "T2", "T4"])
    for watch in (named, by_prefix):
        assert fleet.last_of(watch).bookmark
    resumed_after = fleet.state.revision
    publish_kv_config(fleet.state, EMPTY.with_value(ORDER_TOPIC_CONFIG, "T4", "broker-a:2"), CAUSE)
    fleet.register(A, topics=[], version=DataVersion(2, 2))
    resumed = fleet.watch("T1", "T2", "T4", after=resumed_after)
    for watch in (named, by_prefix, resumed):
        last = fleet.last_of(watch)
        assert last.bookmark
        assert last.header == fleet.state.header()


def test_a_watch_that_closes_while_it_is_told_what_is_absent_leaves_nothing_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE", 1)
    fleet = WatchedFleet()
    fleet.is_warm = False
    watch = fleet.watch("nowhere", "not-there-either")
    fleet.told(watch)
    fleet.is_warm = True
    telling = fleet.hub.add_absent()
    next(telling)
    assert fleet.hub.pending_count == 1
    fleet.hub.close(watch)
    run_steps(telling)
    assert fleet.hub.pending_count == 0
    assert fleet.woken() == []


def test_nothing_is_sent_while_a_change_is_being_passed_over(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.register(topics=[("T1", (1, 1, 6, 0))], version=DataVersion(2, 2))
    assert fleet.messages.next_message(watch) is None
    assert fleet.woken() == [watch]
    assert fleet.told(watch).keys() == {"T1"}


def test_those_who_watch_the_same_are_sent_the_same_bytes(fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    pick_up = fleet.state.route

    def counted(topic: str, zone_name: str | None = None) -> bytes | None:
        encoded.append(topic)
        return pick_up(topic, zone_name)

    monkeypatch.setattr(fleet.state, "route", counted)
    for _ in range(50):
        fleet.told(fleet.watch("T1"))
    assert encoded == ["T1"]


def test_a_message_ends_with_the_topic_that_makes_it_large_enough(
    fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MESSAGE_BYTES", 1)
    watch = fleet.watch("T1", "T2")
    first, last = fleet.message(watch), fleet.message(watch)
    assert first is not None
    assert last is not None
    assert (len(first.changes), first.bookmark) == (1, False)
    assert (len(last.changes), last.bookmark) == (1, True)


def test_the_ordered_topic_configuration_and_its_switch_change_watched_routes() -> None:
    fleet = WatchedFleet(Behaviour(order_message_enable=True))
    fleet.register(topics=["T1", "T2"])
    watch = fleet.watch("T1", "T2")
    fleet.told(watch)
    publish_kv_config(fleet.state, EMPTY.with_value(ORDER_TOPIC_CONFIG, "T1", "broker-a:4"), CAUSE)
    told = fleet.told(watch)
    assert {topic: change.route.order_topic_conf for topic, change in told.items()} == {"T1": "broker-a:4"}
    behaviour = replace(fleet.state.behaviour, order_message_enable=False)
    publish_behaviour(fleet.state, behaviour, CAUSE, (SettingChange("orderMessageEnable", "true", "false"),))
    told = fleet.told(watch)
    assert told.keys() == {"T1"}
    assert not told["T1"].route.HasField("order_topic_conf")


def test_filter_servers_change_watched_routes(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.register(topics=["T1", "T2"], filter_servers=("127.0.0.1:9",))
    assert [row.filter_servers for row in fleet.told(watch)["T1"].route.filter_servers] == [["127.0.0.1:9"]]


TestWatchesAgainstLookups = machine_test(WatchesAgainstLookups, 100, steps=40)


def test_a_broker_with_other_labels_is_not_said_to_have_left() -> None:
    fleet = WatchedFleet()
    registration = Registration(BrokerKey(CLUSTER, "broker-a"), 0, A, VERSION, {"T1": (4, 4, 6, 0)})
    apply_now(BrokerRegistration(fleet.state, registration))
    watch = fleet.watch("T1")
    fleet.told(watch)
    apply_now(BrokerRegistration(fleet.state, replace(registration, labels=(("rack", "r2"),))))
    apply_now(TopicDeletion(fleet.state, "T1", None, CAUSE))
    assert reasons(fleet.told(watch)["T1"]) == [("", "DELETED_BY_OPERATOR")]


def test_a_topic_that_changes_while_it_leaves_a_watch_is_not_told() -> None:
    fleet = WatchedFleet()
    fleet.register(A, topics=["T1", "T2"])
    watch = fleet.watch("T1", "T2")
    fleet.told(watch)
    change = SubscriptionChange.between(watch.subscription, Subscription(frozenset({"T1"})))
    run_steps(fleet.hub.begin_resubscribing(watch, change))
    fleet.register(A, topics=[("T1", (8, 8, 6, 0)), ("T2", (8, 8, 6, 0))], version=DataVersion(2, 2))
    run_steps(fleet.hub.read_changes())
    run_steps(fleet.hub.end_resubscribing(watch, change))
    assert list(fleet.told(watch)) == ["T1"]
