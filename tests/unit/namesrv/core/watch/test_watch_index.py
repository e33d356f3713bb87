"""What watches are told, when they are woken, and what bounds them; on a virtual clock and without a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.behaviour import Behaviour
from namesrv.core.errors import Overloaded, RevisionCompacted
from namesrv.core.records.changes import Cause, ConfigPut
from namesrv.core.records.rows import DataVersion
from namesrv.core.routes.change_log import ChangeLog
from namesrv.core.routes.kv_config import EMPTY, ORDER_TOPIC_CONFIG
from namesrv.core.slices import DROP_SLICE, run_sync
from namesrv.core.watch import messages, watch_index
from namesrv.core.watch.messages import WatchMessages
from namesrv.core.watch.subscriptions import SUBSCRIBE_SLICE, Subscription
from namesrv.core.watch.watch_index import Follower, RouteWatch, WatchIndex
from support.core_fleet import CLUSTER, A, B, Fleet

CAUSE = Cause("test")


class WatchedFleet(Fleet):
    """A fleet whose routes are watched."""

    def __init__(self, behaviour: Behaviour | None = None, max_waiting: int = 1_000_000) -> None:
        super().__init__(behaviour)
        self.is_warm = True
        self.start_watching(max_waiting)

    def start_watching(self, max_waiting: int = 10, *, is_copy: bool = False) -> None:
        """Has no watches yet."""
        self.watches = WatchIndex(self.manager, is_warm=self.is_warm, max_waiting=max_waiting, is_copy=is_copy)
        self.messages = WatchMessages(self.manager, self.watches, lambda: self.is_warm)

    def watch(
        self,
        *topics: str,
        prefixes: Iterable[str] = (),
        zone: str | None = None,
        after: int | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> RouteWatch:
        watch = self.watches.open(Subscription(frozenset(topics), tuple(prefixes), zone), wake)
        run_sync(self.watches.settle())
        run_sync(self.watches.join(watch))
        run_sync(self.watches.settle())
        run_sync(self.watches.fill(watch) if after is None else self.watches.catch_up(watch, after))
        return watch

    def message(self, watch: RouteWatch) -> pb.WatchTopicRoutesResponse | None:
        """The next message; None if there is none."""
        run_sync(self.watches.settle())
        encoded = self.messages.next_message(watch)
        return None if encoded is None else pb.WatchTopicRoutesResponse.FromString(encoded)

    def told(self, watch: RouteWatch) -> dict[str, pb.TopicRouteChange]:
        """The changes of the next message, which is the last for now."""
        message = self.message(watch)
        assert message is not None
        assert message.bookmark
        assert message.header == self.manager.header()
        assert self.message(watch) is None
        return {change.topic: change for change in message.changes}

    def last_of(self, watch: RouteWatch) -> pb.WatchTopicRoutesResponse:
        """The last message for now."""
        last = None
        while message := self.message(watch):
            last = message
        assert last is not None
        return last

    def woken(self) -> list[Follower]:
        run_sync(self.watches.settle())
        return self.watches.take_to_wake()


@pytest.fixture
def fleet() -> WatchedFleet:
    fleet = WatchedFleet()
    fleet.register(topics=["T1", "T2"])
    return fleet


def reasons(change: pb.TopicRouteChange) -> list[tuple[str, str]]:
    return [
        (gone.broker_addr, route_data_pb2.RemovalReason.Name(gone.reason).removeprefix("REMOVAL_REASON_"))
        for gone in change.removals
    ]


def test_a_watch_of_nothing_that_is_there_begins_with_what_is_absent(fleet: WatchedFleet) -> None:
    watch = fleet.watch("nowhere", prefixes=["also-nowhere"])
    told = fleet.told(watch)
    assert told.keys() == {"nowhere"}
    assert not told["nowhere"].HasField("route")
    assert reasons(told["nowhere"]) == []


def test_a_topic_named_twice_over_is_told_once(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1", prefixes=["T", "T1", ""])
    assert fleet.told(watch).keys() == {"T1", "T2"}
    fleet.register(topics=[("T1", (1, 1, 6, 0))], version=DataVersion(2, 2))
    message = fleet.message(watch)
    assert message is not None
    assert [change.topic for change in message.changes] == ["T1"]


def test_only_those_are_woken_whose_topics_changed_and_once_for_many_changes(fleet: WatchedFleet) -> None:
    first, second = fleet.watch("T1"), fleet.watch("T2")
    fleet.told(first), fleet.told(second)
    for number in range(5):
        fleet.register(topics=[("T1", (number, 1, 6, 0))], version=DataVersion(2, number))
    assert fleet.woken() == [first]
    assert fleet.woken() == []
    assert fleet.told(first).keys() == {"T1"}


def test_a_registration_of_ten_thousand_topics_wakes_a_watch_of_all_of_them_once(fleet: WatchedFleet) -> None:
    watch = fleet.watch(prefixes=["many-"])
    fleet.told(watch)
    names = {f"many-{number}" for number in range(10_000)}
    fleet.register(B, topics=names, name="broker-b")
    assert fleet.woken() == [watch]
    told: set[str] = set()
    while message := fleet.message(watch):
        told |= {change.topic for change in message.changes}
        assert len(message.changes) <= messages.MESSAGE_TOPICS
    assert told == names
    assert fleet.woken() == []


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


def test_a_broker_that_came_back_before_anybody_was_told_has_not_left(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.unregister()
    fleet.register(topics=["T1", "T2"])
    told = fleet.told(watch)["T1"]
    assert told.HasField("route")
    assert reasons(told) == []


def test_a_deleted_topic_left_its_group_and_no_broker_left(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    run_sync(fleet.manager.delete_topic("T1", None, CAUSE))
    told = fleet.told(watch)["T1"]
    assert [(gone.broker_name, gone.HasField("broker_id")) for gone in told.removals] == [("broker-a", False)]
    assert reasons(told) == [("", "DELETED_BY_OPERATOR")]


def test_a_deleted_topic_that_came_back_from_another_broker_of_its_group_is_said_to_have_been_deleted(
    fleet: WatchedFleet,
) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    run_sync(fleet.manager.delete_topic("T1", None, CAUSE))
    fleet.unregister(A)
    fleet.register(B, topics=["T1"])
    told = fleet.told(watch)["T1"]
    assert [broker.broker_addr for broker in told.route.broker_datas[0].broker_addrs] == [B]
    assert reasons(told) == [("", "DELETED_BY_OPERATOR")]


def test_the_ordered_topic_configuration_and_its_switch_change_watched_routes() -> None:
    fleet = WatchedFleet(Behaviour(order_message_enable=True))
    fleet.register(topics=["T1", "T2"])
    watch = fleet.watch("T1", "T2")
    fleet.told(watch)
    manager = fleet.manager
    manager.publish_kv_config(EMPTY.with_value(ORDER_TOPIC_CONFIG, "T1", "broker-a:4"), CAUSE)
    told = fleet.told(watch)
    assert {topic: change.route.order_topic_conf for topic, change in told.items()} == {"T1": "broker-a:4"}
    behaviour = replace(manager.behaviour, order_message_enable=False)
    manager.publish_behaviour(behaviour, CAUSE, (ConfigPut("orderMessageEnable", "false"),))
    told = fleet.told(watch)
    assert told.keys() == {"T1"}
    assert not told["T1"].route.HasField("order_topic_conf")


def test_filter_servers_change_watched_routes(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.register(topics=["T1", "T2"], filter_servers=("127.0.0.1:9",))
    assert [row.filter_servers for row in fleet.told(watch)["T1"].route.filter_servers] == [["127.0.0.1:9"]]


def test_watches_of_two_zones_are_sent_the_routes_of_each() -> None:
    fleet = WatchedFleet()
    fleet.register(A, topics=["T1"], name="broker-a", zone_name="z1")
    fleet.register(B, topics=["T1"], name="broker-b", zone_name="z2")
    for zone, groups in (("z1", ["broker-a"]), ("z2", ["broker-b"]), (None, ["broker-a", "broker-b"])):
        route = fleet.told(fleet.watch("T1", zone=zone))["T1"].route
        assert [data.broker_name for data in route.broker_datas] == groups


def test_while_the_name_server_is_warming_nothing_is_said_of_topics_that_it_does_not_know(fleet: WatchedFleet) -> None:
    fleet.is_warm = False
    watch = fleet.watch("T1", "comes", "does-not-come")
    assert fleet.told(watch).keys() == {"T1"}
    fleet.register(B, topics=["comes"], name="broker-b")
    assert fleet.told(watch).keys() == {"comes"}
    fleet.woken()
    fleet.is_warm = True
    run_sync(fleet.watches.say_what_is_absent())
    assert fleet.woken() == [watch]
    told = fleet.told(watch)
    assert told.keys() == {"does-not-come"}
    assert not told["does-not-come"].HasField("route")


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
    resumed_after = fleet.manager.revision
    fleet.manager.publish_kv_config(EMPTY.with_value(ORDER_TOPIC_CONFIG, "T4", "broker-a:2"), CAUSE)
    fleet.register(A, topics=[], version=DataVersion(2, 2))
    resumed = fleet.watch("T1", "T2", "T4", after=resumed_after)
    for watch in (named, by_prefix, resumed):
        last = fleet.last_of(watch)
        assert last.bookmark
        assert last.header == fleet.manager.header()


def test_who_resumes_from_before_the_name_server_was_warm_is_told_what_is_absent() -> None:
    fleet = WatchedFleet()
    fleet.is_warm = False
    fleet.start_watching()
    fleet.register(topics=["T1"])
    assert fleet.told(fleet.watch("T1", "T2")).keys() == {"T1"}
    fleet.is_warm = True
    run_sync(fleet.watches.say_what_is_absent())
    assert fleet.told(fleet.watch("T1", "T2", after=1)).keys() == {"T2"}
    fleet.register(topics=["T3"], version=DataVersion(2, 2))
    assert fleet.told(fleet.watch("T1", "T2", after=2)) == {}


def test_who_breaks_off_while_others_are_told_what_is_absent_is_told_when_it_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_index, "MARK_SLICE", 1)
    fleet = WatchedFleet()
    fleet.is_warm = False
    fleet.start_watching()
    first, second = fleet.watch("nowhere", "not-there-either"), fleet.watch("T1", "T2")
    fleet.told(first), fleet.told(second)
    fleet.is_warm = True
    telling = fleet.watches.say_what_is_absent()
    next(telling)
    fleet.register(topics=["T1"])
    assert fleet.told(second).keys() == {"T1"}
    bookmark = fleet.manager.revision
    fleet.watches.close(second)
    run_sync(telling)
    assert fleet.told(fleet.watch("T1", "T2", after=bookmark)).keys() == {"T2"}


def test_a_watch_that_closes_while_it_is_told_what_is_absent_leaves_nothing_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_index, "MARK_SLICE", 1)
    fleet = WatchedFleet()
    fleet.is_warm = False
    watch = fleet.watch("nowhere", "not-there-either")
    fleet.told(watch)
    fleet.is_warm = True
    telling = fleet.watches.say_what_is_absent()
    next(telling)
    assert fleet.watches.waiting_count == 1
    fleet.watches.close(watch)
    run_sync(telling)
    assert fleet.watches.waiting_count == 0
    assert fleet.woken() == []


def test_a_watch_is_woken_when_it_has_been_told_of_all_that_is_absent(
    fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_index, "MARK_SLICE", 1)
    fleet.is_warm = False
    watch = fleet.watch("nowhere", "not-there-either")
    fleet.told(watch)
    fleet.woken()
    fleet.is_warm = True
    telling = fleet.watches.say_what_is_absent()
    next(telling)
    fleet.woken()  # somebody else's change has those woken who are to be woken by now
    run_sync(telling)
    assert fleet.woken() == [watch]
    assert fleet.told(watch).keys() == {"nowhere", "not-there-either"}


def test_who_resumes_at_a_copy_is_told_what_is_absent_as_another_copy_may_not_have_been_warm_yet() -> None:
    fleet = WatchedFleet()
    fleet.register(topics=["T1"])
    fleet.start_watching(is_copy=True)
    assert fleet.told(fleet.watch("T1", "T2", after=1)).keys() == {"T2"}
    run_sync(fleet.watches.say_what_is_absent())
    fleet.register(topics=["T1", "T3"], version=DataVersion(2, 2))
    assert fleet.told(fleet.watch("T1", "T2", after=2)).keys() == {"T2"}


def test_a_removal_while_warming_is_said_with_its_reason(fleet: WatchedFleet) -> None:
    fleet.is_warm = False
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.unregister()
    assert reasons(fleet.told(watch)["T1"]) == [(A, "UNREGISTERED")]


def test_who_resumes_is_told_what_changed_after_its_point(fleet: WatchedFleet) -> None:
    fleet.register(B, topics=["T2", "T3"], name="broker-b")
    fleet.unregister(B, name="broker-b")
    told = fleet.told(fleet.watch("T1", "T2", "T3", after=2))
    assert told.keys() == {"T2", "T3"}
    assert reasons(told["T3"]) == [(B, "UNREGISTERED")]
    assert fleet.told(fleet.watch("T1", "T2", "T3", after=3)) == {}


def test_a_point_that_the_change_log_has_dropped_cannot_be_resumed_from(fleet: WatchedFleet) -> None:
    fleet.manager.change_log = ChangeLog(max_changes=2)
    fleet.start_watching()
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    with pytest.raises(RevisionCompacted):
        fleet.watch("T1", after=1)
    fleet.watch("T1", after=2)


def test_watches_end_if_the_change_log_drops_what_they_have_not_been_told(fleet: WatchedFleet) -> None:
    fleet.manager.change_log = ChangeLog(max_changes=2)
    fleet.start_watching()
    watch = fleet.watch("T1")
    fleet.told(watch)
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    assert fleet.woken() == [watch]
    with pytest.raises(RevisionCompacted):
        fleet.message(watch)


def test_nothing_is_sent_while_a_change_is_being_passed_over(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    fleet.register(topics=[("T1", (1, 1, 6, 0))], version=DataVersion(2, 2))
    assert fleet.messages.next_message(watch) is None
    assert fleet.woken() == [watch]
    assert fleet.told(watch).keys() == {"T1"}


def test_a_bookmark_is_due_only_where_the_revision_moved_on(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    run_sync(fleet.watches.make_bookmarks_due(0, 1))
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    run_sync(fleet.watches.settle())
    run_sync(fleet.watches.make_bookmarks_due(0, 1))
    assert fleet.woken() == [watch]
    assert fleet.told(watch) == {}


def test_bookmarks_come_in_parts_that_are_all_watches_together(fleet: WatchedFleet) -> None:
    opened = [fleet.watch("T1") for _ in range(7)]
    for watch in opened:
        fleet.told(watch)
    fleet.register(B, topics=["T3"], name="broker-b")
    run_sync(fleet.watches.settle())
    woken: list[Follower] = []
    for part in range(3):
        run_sync(fleet.watches.make_bookmarks_due(part, 3))
        woken += fleet.woken()
    assert len(woken) == len(opened)
    assert set(woken) == set(opened)


def test_those_who_watch_the_same_are_sent_the_same_bytes(fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    pick_up = fleet.manager.pickup_topic_route_data

    def counted(topic: str, zone_name: str | None = None) -> bytes | None:
        encoded.append(topic)
        return pick_up(topic, zone_name)

    monkeypatch.setattr(fleet.manager, "pickup_topic_route_data", counted)
    for _ in range(50):
        fleet.told(fleet.watch("T1"))
    assert encoded == ["T1"]


def test_what_is_shared_is_bounded(fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SHARED_BYTES", 0)
    watch = fleet.watch("T1", "T2")
    fleet.told(watch)
    assert len(fleet.messages._shared) == 1


def test_where_too_much_waits_the_wide_watch_ends_and_small_ones_go_on() -> None:
    fleet = WatchedFleet(max_waiting=2_000)
    wide, small = fleet.watch(prefixes=[""]), fleet.watch("T1")
    fleet.told(wide), fleet.told(small)
    fleet.register(topics=["T1", *(f"many-{number}" for number in range(2_500))])
    assert set(fleet.woken()) == {wide, small}
    with pytest.raises(Overloaded):
        fleet.message(wide)
    assert fleet.told(small).keys() == {"T1"}
    fleet.watches.close(wide)
    assert fleet.watches.waiting_count == 0


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


def test_a_closed_watch_leaves_nothing_behind(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1", prefixes=["T"])
    fleet.watches.close(watch)
    fleet.register(topics=["T1"], version=DataVersion(2, 2))
    assert fleet.woken() == []
    assert fleet.watches.waiting_count == 0
    run_sync(fleet.manager.leftovers.clear_up())
    assert len(fleet.watches._index._by_topic) == len(fleet.watches._index._by_prefix) == 0


def test_wide_watches_that_end_together_leave_the_index_a_slice_at_a_time() -> None:
    fleet, ended = WatchedFleet(), []
    names = [[f"t-{watch}-{number}" for number in range(10_000)] for watch in range(10)]
    watches = [fleet.watch(*some) for some in names]
    index = fleet.watches._index._by_topic
    for watch in watches:
        fleet.watches.close(watch, lambda: ended.append(len(index)))
    assert len(index) == 100_000, "ending them does nothing that grows with what they hold"
    left, dropped = len(index), []
    for _ in fleet.manager.leftovers.clear_up():
        dropped.append(left - len(index))
        left = len(index)
    assert max(dropped) <= SUBSCRIBE_SLICE
    assert left == 0
    assert ended == list(range(90_000, -1, -10_000)), "each is told when its names have left"


def test_a_prefix_is_found_until_the_last_watch_of_it_has_gone(fleet: WatchedFleet) -> None:
    first, second = fleet.watch(prefixes=["n"]), fleet.watch(prefixes=["n", "new"])
    fleet.told(first), fleet.told(second)
    fleet.watches.close(second)
    run_sync(fleet.manager.leftovers.clear_up())
    fleet.register(topics=["new"], version=DataVersion(2, 2))
    assert fleet.told(first).keys() == {"new"}
    fleet.watches.close(first)
    run_sync(fleet.manager.leftovers.clear_up())
    assert fleet.watches._index._lengths == ()


def test_what_waited_for_a_watch_that_ends_is_dropped_in_slices(fleet: WatchedFleet) -> None:
    watch = fleet.watch(prefixes=["many"])
    topics = [f"many-{number}" for number in range(3 * DROP_SLICE)]
    fleet.register(topics=topics, version=DataVersion(2, 2))
    fleet.woken()
    waiting = watch.waiting
    fleet.watches.close(watch)
    assert len(waiting) == 3 * DROP_SLICE
    assert fleet.watches.waiting_count == 0
    steps = sum(1 for _ in fleet.manager.leftovers.clear_up())
    assert not waiting
    assert steps >= 3


def test_followers_are_woken_by_every_change_until_they_go(fleet: WatchedFleet) -> None:
    run_sync(fleet.watches.settle())
    reader = Follower(lambda: None, 1)
    fleet.watches.follow(reader)
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    assert fleet.woken() == [reader]
    fleet.watches.unfollow(reader)
    fleet.unregister(B, name="broker-b")
    assert fleet.woken() == []


@pytest.mark.parametrize("subscribed", [("T1",), tuple(f"other-{number}" for number in range(50))])
def test_a_group_that_changes_tells_the_watches_of_its_topics_however_many_are_watched(
    fleet: WatchedFleet, subscribed: tuple[str, ...]
) -> None:
    """A change is compared with the index from the shorter side."""
    watch, others = fleet.watch("T1"), fleet.watch(*subscribed)
    fleet.told(watch), fleet.told(others)
    fleet.register(B, 1, ())
    assert watch in fleet.woken()
    assert fleet.told(watch)["T1"].route.broker_datas[0].cluster_name == CLUSTER
