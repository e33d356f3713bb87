"""Watches, without streams and a loop: how they are found, what they are told, and what wakes and bounds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core import pace
from namesrv.core.changes import ChangeLog, SettingChange
from namesrv.core.errors import Reason
from namesrv.core.model import ORDER_TOPIC_CONFIG, DataVersion, KvConfigTable
from namesrv.core.pace import run_steps
from namesrv.core.watch import hub, messages
from namesrv.core.watch.hub import (
    ChangeReader,
    RouteWatch,
    Subscription,
    SubscriptionChange,
    SubscriptionIndex,
    WatchHub,
)
from namesrv.core.watch.messages import WatchMessages
from tests.properties import examples, machine_test
from tests.support.core_fleet import SMALL_FLEETS, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import TEST, delete_topic
from tests.unit.namesrv.watch_machine import WatchesAgainstLookups

TestWatchesAgainstLookups = machine_test(WatchesAgainstLookups, 100, steps=80)


class WatchedFleet(Fleet):
    """A fleet whose routes are watched."""

    def __init__(self, max_pending: int = 1_000_000) -> None:
        super().__init__()
        self.is_warm = True
        self.start_watching(max_pending)

    def start_watching(self, max_pending: int = 10) -> None:
        """Has no watches yet."""
        self.hub = WatchHub(self.state, max_pending=max_pending)
        self.messages = WatchMessages(self.state, self.hub, lambda: self.is_warm)

    def watch(self, *topics: str, prefixes: Iterable[str] = (), after: int | None = None) -> RouteWatch:
        watch = RouteWatch(lambda: None, Subscription(frozenset(topics), tuple(prefixes)))
        run_steps(self.hub.read_changes())
        run_steps(self.hub.join(watch))
        run_steps(self.hub.read_changes())
        run_steps(self.hub.fill(watch) if after is None else self.hub.catch_up(watch, after))
        return watch

    def synced(self, *topics: str, prefixes: Iterable[str] = ()) -> RouteWatch:
        """A watch that has been sent everything."""
        watch = self.watch(*topics, prefixes=prefixes)
        self.told(watch)
        return watch

    def message(self, watch: RouteWatch) -> pb.WatchTopicRoutesResponse | None:
        """The next message; None if there is none."""
        run_steps(self.hub.read_changes())
        encoded = self.messages.next_message(watch)
        return None if encoded is None else pb.WatchTopicRoutesResponse.FromString(encoded)

    def told(self, watch: RouteWatch) -> dict[str, pb.TopicRouteChange]:
        """The changes of the next message, which is the last for now."""
        message = self.message(watch)
        assert message is not None
        assert message.bookmark
        assert message.header == self.state.header()
        assert self.message(watch) is None
        return {change.topic: change for change in message.changes}

    def woken(self) -> list[ChangeReader]:
        run_steps(self.hub.read_changes())
        return self.hub.take_to_wake()


def reasons(change: pb.TopicRouteChange) -> list[tuple[str, str]]:
    return [
        (gone.broker_addr, route_data_pb2.RemovalReason.Name(gone.reason).removeprefix("REMOVAL_REASON_"))
        for gone in change.removals
    ]


@pytest.fixture
def fleet() -> WatchedFleet:
    fleet = WatchedFleet()
    fleet.register(topics=["T1", "T2"])
    return fleet


# The index that finds them

NAMES = ["a", "ab", "abc", "b", "ba"]
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.frozensets(st.sampled_from(NAMES), max_size=3),
    st.lists(st.sampled_from(["", "a", "ab", "abcd"]), max_size=3, unique=True).map(tuple),
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 3), SUBSCRIPTIONS), max_size=20))
def test_the_index_finds_the_watches_whose_subscription_has_a_topic(steps: list[tuple[int, Subscription]]) -> None:
    index, model = SubscriptionIndex[int](), dict[int, Subscription]()
    for watch, subscription in steps:
        if watch in model:
            run_steps(index.remove(watch, model.pop(watch)))
        else:
            model[watch] = subscription
            run_steps(index.add(watch, subscription))
        for topic in NAMES:
            found = index.watches_of(topic)
            assert sorted(found) == sorted(watch for watch, some in model.items() if some.has(topic))
            assert not found or topic in index.candidates([topic])
            assert not found or topic in index.candidates(NAMES)
        names = {("name", name) for some in model.values() for name in some.topics}
        names |= {("prefix", name) for some in model.values() for name in some.prefixes}
        assert len(index) == len(names)


# What they are told


def test_what_left_a_route_is_said_with_its_reason_also_if_more_happened_since(fleet: WatchedFleet) -> None:
    fleet.register(B, 1, ())
    watch = fleet.synced("T1")
    fleet.clock.advance(100)
    fleet.query(B, 1)
    fleet.clock.advance(21)
    fleet.scan()
    fleet.unregister(B)
    told = fleet.told(watch)["T1"]
    assert not told.HasField("route")
    assert sorted(reasons(told)) == [(A, "EXPIRED"), (B, "UNREGISTERED")]


def test_only_the_latest_removals_of_a_topic_are_kept(fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_REMOVALS", 2)
    watch = fleet.synced("T1")
    for number in range(3):
        fleet.register(f"10.0.1.{number}:1", topics=["T1"], name="broker-b")
        fleet.unregister(f"10.0.1.{number}:1", name="broker-b")
        fleet.woken()
    assert [len(removals) for removals in watch.pending.values()] == [2]
    assert reasons(fleet.told(watch)["T1"]) == [(f"10.0.1.{number}:1", "UNREGISTERED") for number in (1, 2)]


def test_a_deleted_topic_that_came_back_from_another_broker_of_its_group_is_said_to_have_been_deleted(
    fleet: WatchedFleet,
) -> None:
    watch = fleet.synced("T1")
    delete_topic(fleet, "T1")
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


def test_nothing_is_sent_while_a_change_is_being_passed_over(fleet: WatchedFleet) -> None:
    watch = fleet.synced("T1")
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
        fleet.synced("T1")
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


def test_the_ordered_topic_configuration_and_its_switch_change_watched_routes(fleet: WatchedFleet) -> None:
    fleet.state.publish_behaviour(replace(SMALL_FLEETS, order_message_enable=True), TEST, ())
    watch = fleet.synced("T1", "T2")
    fleet.state.publish_kv_config(KvConfigTable().with_value(ORDER_TOPIC_CONFIG, "T1", "broker-a:4"), TEST)
    told = fleet.told(watch)
    assert {topic: change.route.order_topic_conf for topic, change in told.items()} == {"T1": "broker-a:4"}
    fleet.state.publish_behaviour(SMALL_FLEETS, TEST, (SettingChange("orderMessageEnable", "true", "false"),))
    told = fleet.told(watch)
    assert told.keys() == {"T1"}
    assert not told["T1"].route.HasField("order_topic_conf")


def test_filter_servers_change_watched_routes(fleet: WatchedFleet) -> None:
    watch = fleet.synced("T1")
    fleet.register(topics=["T1", "T2"], filter_servers=("127.0.0.1:9",))
    assert [row.filter_servers for row in fleet.told(watch)["T1"].route.filter_servers] == [["127.0.0.1:9"]]


def test_a_deleted_topic_left_its_group_and_no_broker_left(fleet: WatchedFleet) -> None:
    watch = fleet.synced("T1")
    fleet.register(topics=["T1", "T2"], labels=(("rack", "r2"),))
    delete_topic(fleet, "T1")
    told = fleet.told(watch)["T1"]
    assert [(gone.broker_name, gone.HasField("broker_id")) for gone in told.removals] == [("broker-a", False)]
    assert reasons(told) == [("", "DELETED_BY_OPERATOR")]


def test_a_topic_that_changes_while_it_leaves_a_watch_is_not_told(fleet: WatchedFleet) -> None:
    watch = fleet.synced("T1", "T2")
    change = SubscriptionChange.between(watch.subscription, Subscription(frozenset({"T1"})))
    run_steps(fleet.hub.begin_resubscribing(watch, change))
    fleet.register(A, topics=[("T1", (8, 8, 6, 0)), ("T2", (8, 8, 6, 0))], version=DataVersion(2, 2))
    run_steps(fleet.hub.read_changes())
    run_steps(fleet.hub.end_resubscribing(watch, change))
    assert list(fleet.told(watch)) == ["T1"]


# When they are woken, and what bounds them


def test_only_those_are_woken_whose_topics_changed_and_once_for_many_changes(fleet: WatchedFleet) -> None:
    first, _ = fleet.synced("T1"), fleet.synced("T2")
    for number in range(5):
        fleet.register(topics=[("T1", (number, 1, 6, 0))], version=DataVersion(2, number))
    assert fleet.woken() == [first]
    assert fleet.woken() == []
    assert fleet.told(first).keys() == {"T1"}


def test_an_open_watch_is_woken_when_told_of_all_that_is_absent(
    fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLICE", 1)
    fleet.is_warm = False
    closing, watch = (fleet.synced("nowhere", "not-there-either") for _ in range(2))
    fleet.is_warm = True
    telling = fleet.hub.add_absent()
    next(telling)
    assert fleet.hub.pending_count == 1
    fleet.hub.close(closing)
    next(telling)
    assert fleet.hub.pending_count == 1
    fleet.woken()  # somebody else's change has those woken who are to be woken by now
    run_steps(telling)
    assert fleet.woken() == [watch]
    assert fleet.told(watch).keys() == {"nowhere", "not-there-either"}


def test_a_watch_that_resumes_when_it_is_warm_is_told_what_is_absent(fleet: WatchedFleet) -> None:
    fleet.is_warm = False
    cold = fleet.synced("T1", "nowhere")
    fleet.is_warm = True
    resumed = fleet.watch("T1", "nowhere", after=cold.revision)
    assert fleet.told(resumed).keys() == {"nowhere"}


def test_watches_end_and_cannot_resume_where_changes_were_dropped(fleet: WatchedFleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    fleet.start_watching()
    watch = fleet.synced("T1")
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    assert fleet.woken() == [watch]
    with refuses(Reason.REVISION_COMPACTED):
        fleet.message(watch)
    with refuses(Reason.REVISION_COMPACTED):
        fleet.watch("T1", after=1)
    fleet.watch("T1", after=2)


def test_bookmarks_are_due_in_parts_and_only_where_the_revision_moved_on(fleet: WatchedFleet) -> None:
    opened = [fleet.synced("T1") for _ in range(7)]
    run_steps(fleet.hub.make_bookmarks_due(0, 1))
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    run_steps(fleet.hub.read_changes())
    woken: list[ChangeReader] = []
    for part in range(3):
        run_steps(fleet.hub.make_bookmarks_due(part, 3))
        woken += fleet.woken()
    assert len(woken) == len(opened)
    assert set(woken) == set(opened)
    assert fleet.told(opened[0]) == {}


def test_where_too_much_waits_the_wide_watch_ends_and_small_ones_go_on() -> None:
    fleet = WatchedFleet(max_pending=2_000)
    wide, small = fleet.synced(prefixes=[""]), fleet.synced("T1")
    fleet.register(topics=["T1", *(f"many-{number}" for number in range(2_500))])
    assert set(fleet.woken()) == {wide, small}
    with refuses(Reason.OVERLOADED):
        fleet.message(wide)
    assert fleet.told(small).keys() == {"T1"}
    fleet.hub.close(wide)
    assert fleet.hub.pending_count == 0


def test_a_closed_watch_leaves_nothing_behind(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1", prefixes=["T"])
    leaving = fleet.hub.close(watch)
    fleet.register(topics=["T1"], version=DataVersion(2, 2))
    assert fleet.woken() == []
    assert fleet.hub.pending_count == 0
    run_steps(leaving)
    assert fleet.hub.name_count == 0


def test_followers_are_woken_by_every_change_until_they_go(fleet: WatchedFleet) -> None:
    run_steps(fleet.hub.read_changes())
    reader = ChangeReader(lambda: None, revision=1)
    fleet.hub.follow(reader)
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    assert fleet.woken() == [reader]
    fleet.hub.unfollow(reader)
    fleet.unregister(B, name="broker-b")
    assert fleet.woken() == []


def test_many_watches_with_few_changes_each_have_a_bound_together() -> None:
    fleet = WatchedFleet(max_pending=1_000)
    topics = [f"T{number}" for number in range(500)]
    watches = [fleet.synced(*topics) for _ in range(10)]
    fleet.register(topics=[(topic, (4, 4, 6, 0)) for topic in topics])
    fleet.woken()
    assert fleet.hub.pending_count <= 2_000
    assert sum(watch.failure is not None for watch in watches) == 6
