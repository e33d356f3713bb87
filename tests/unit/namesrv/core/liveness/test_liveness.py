"""Liveness: brokers are removed for their silence or with their channel. When a name server is warm after a start."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from namesrv.app.access import NamedBrokers
from namesrv.app.writer import INLINE_TOPICS
from namesrv.core.changes import Cause
from namesrv.core.liveness import Liveness
from namesrv.core.model import BrokerKey, Doubt, LiveKey, RemovalReason
from namesrv.core.removals import BROKERS_PER_CHANGE, confirm_broker_loss, on_channel_destroy, scan_not_active_broker
from namesrv.core.state import COMING_BACK_SECONDS, ROCKETMQ_COMING_BACK_SECONDS, WarmUp
from namesrv_common.server.permits import NamedBroker
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.state_changes import apply_all_now
from tests.support.virtual_clock import VirtualClock


def test_brokers_of_a_doubted_channel_end_are_doubted_until_they_are_heard_or_gone(fleet: Fleet) -> None:
    channel_id = fleet.state.open_channel()
    for number, addr in enumerate((A, B, "127.0.0.1:30911")):
        fleet.register(addr, name=f"broker-{number}", channel_id=channel_id)
    fleet.state.liveness.end_channel(channel_id)
    revision, ends_at = fleet.state.revision, fleet.clock.wall_millis() + 60_000
    fleet.state.doubt_channel_end(channel_id, 60.0, Doubt.OWN_STALL)
    keys = [LiveKey(CLUSTER, addr) for addr in (A, B, "127.0.0.1:30911")]
    assert fleet.state.channel_doubts() == dict.fromkeys(keys, (Doubt.OWN_STALL, ends_at))
    assert fleet.state.revision == revision, "a doubt changes no route"
    sent = map(route_service_pb2.StreamRouteSnapshotResponse.FromString, fleet.state.snapshot().messages())
    rows = [row for message in sent for row in message.chunk.live_brokers]
    own_stall = route_data_pb2.DOUBT_REASON_OWN_STALL
    assert [(row.doubt_ends_at_millis, row.doubt_reason) for row in rows] == [(ends_at, own_stall)] * 3
    fleet.state.broker_heartbeat(BrokerKey(CLUSTER, "broker-0"), 0, A)
    fleet.unregister(B, name="broker-1")
    assert list(fleet.state.doubts) == keys[2:]
    fleet.clock.advance(60.001)
    assert fleet.state.channel_doubts()[keys[2]].ends_at_millis == ends_at
    assert len(fleet.scan()) == 1
    assert fleet.state.doubts == {}


def test_the_address_of_a_doubted_broker_is_free_for_others(fleet: Fleet) -> None:
    channel_id = fleet.state.open_channel()
    fleet.register(channel_id=channel_id)
    fleet.state.liveness.end_channel(channel_id)
    fleet.state.doubt_channel_end(channel_id, 60.0, Doubt.OWN_STALL)
    identity = route_data_pb2.BrokerIdentity(cluster_name=CLUSTER, broker_name="broker-b", broker_addr=A)
    asked = registration_service_pb2.RegisterBrokerRequest(broker=identity)
    claimed = NamedBroker((CLUSTER, "broker-b"), A)
    assert list(NamedBrokers(fleet.state).of(asked)) == [claimed]
    fleet.register()
    assert list(NamedBrokers(fleet.state).of(asked)) == [claimed, NamedBroker(BrokerKey(CLUSTER, "broker-a"), A)]


def test_a_channel_is_idle_once_none_of_its_brokers_was_heard_of_for_the_expiry_time(fleet: Fleet) -> None:
    used, unused = fleet.state.open_channel(), fleet.state.open_channel()
    fleet.clock.advance(100.0)
    fleet.register(channel_id=used)
    fleet.clock.advance(20.001)
    assert fleet.state.liveness.idle_channels() == [unused]
    fleet.clock.advance(100.0)
    assert set(fleet.state.liveness.idle_channels()) == {used, unused}


class _Counted(str):
    """A name that counts what it is compared with."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_thousands_of_channels_that_end_together_are_not_compared_with_each_other() -> None:
    fleet, numbers = Fleet(), itertools.count()
    fleet.state.liveness._new_channel_id = lambda: _Counted(f"channel-{next(numbers)}")
    channels = [fleet.state.open_channel() for _ in range(500)]
    for number, channel_id in enumerate(channels):
        fleet.register(f"10.0.{number >> 8}.{number & 255}:10911", name=f"b-{number}", channel_id=channel_id)
        fleet.state.liveness.end_channel(channel_id)
    _Counted.compared = 0
    apply_all_now(on_channel_destroy(fleet.state, channels))
    assert _Counted.compared < 20 * len(channels)


@pytest.mark.parametrize(("brokers", "is_small"), [(1, True), (BROKERS_PER_CHANGE, False)])
def test_many_brokers_without_topics_are_a_large_removal(fleet: Fleet, brokers: int, is_small: bool) -> None:
    for number in range(brokers):
        fleet.register(f"10.0.0.{number}:10911", topics=(), name=f"broker-{number}")
    fleet.clock.advance(121.0)
    removal = next(scan_not_active_broker(fleet.state))
    assert (removal.topics <= INLINE_TOPICS) is is_small


# Deadlines


def key(number: int) -> LiveKey:
    return LiveKey("cluster", f"10.0.0.1:{number}")


def test_it_is_known_how_late_the_last_search_found_the_most_overdue_broker() -> None:
    clock = VirtualClock()
    liveness = Liveness(clock, 60.0, str)
    liveness.give(key(1), 10.0)
    liveness.give(key(2), 5.0)
    clock.advance(5.0)
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 0.0
    clock.advance(7.0)
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 7.0
    liveness.forget(key(2))
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 2.0


# The warm-up: when a name server can say what is not there.

WARM_UP = 45.0


def started(fleet: Fleet, warm_up_seconds: float = WARM_UP) -> WarmUp:
    return WarmUp(fleet.state, warm_up_seconds)


def restarted(*addrs: str, topic_by_topic: bool = False) -> Fleet:
    """A name server that has loaded a file with brokers, each in a group of its own."""
    before, after = Fleet(), Fleet()
    for addr in addrs:
        before.register(addr, name=f"broker-{addr[-5:]}", timeout_seconds=30, topic_by_topic=topic_by_topic)
    after.state.load_snapshot(before.state.snapshot().messages())
    return after


@pytest.mark.parametrize("make", [Fleet, restarted], ids=["no file", "an empty file"])
def test_without_brokers_of_a_file_it_is_warm_when_the_time_is_over(make: Callable[[], Fleet]) -> None:
    """Scenario 57, decided otherwise: only unknown topics wait, so there is no needWaitForService."""
    fleet = make()
    warm_up = started(fleet)
    fleet.register(A)
    fleet.clock.advance(WARM_UP - 0.1)
    assert not warm_up.is_warm()
    assert not warm_up.serves(), "clients would ask it and not the name servers that know more"
    fleet.clock.advance(0.1)
    assert (warm_up.serves(), warm_up.is_warm()) == (True, True)


def test_the_time_in_which_this_process_did_not_run_does_not_count() -> None:
    fleet = Fleet()
    fleet.state.grant_more_time(1_000.0)
    warm_up = started(fleet)
    fleet.clock.advance(WARM_UP)
    fleet.state.grant_more_time(10.0)
    assert not warm_up.is_warm()
    fleet.clock.advance(9.9)
    assert not warm_up.is_warm()
    fleet.clock.advance(0.1)
    assert warm_up.is_warm()
    fleet.state.grant_more_time(10.0)
    assert warm_up.is_warm(), "it stays so"


def test_brokers_that_are_connected_and_still_registering_are_waited_for() -> None:
    fleet = Fleet()
    warm_up = started(fleet)
    first, second, third = (fleet.state.open_channel() for _ in range(3))
    fleet.register(A, channel_id=first)
    fleet.clock.advance(WARM_UP)
    assert not warm_up.is_warm(), "two brokers would be denied because three hundred register before them"
    fleet.register(B, channel_id=second)
    assert not warm_up.is_warm()
    fleet.end_channel(third)
    assert warm_up.is_warm()


def test_whoever_holds_a_channel_and_never_registers_is_waited_for_as_long_again_at_most() -> None:
    fleet = Fleet()
    warm_up = started(fleet)
    fleet.state.open_channel()
    fleet.clock.advance(2 * WARM_UP - 0.1)
    assert not warm_up.is_warm()
    fleet.clock.advance(0.1)
    assert warm_up.is_warm()


@pytest.mark.parametrize(
    ("topic_by_topic", "seconds"), [(False, COMING_BACK_SECONDS), (True, ROCKETMQ_COMING_BACK_SECONDS)]
)
def test_a_broker_that_is_newer_than_the_file_has_time_to_come_back(topic_by_topic: bool, seconds: float) -> None:
    """An agent comes back soon, RocketMQ's own broker with its next period."""
    fleet = restarted(A, topic_by_topic=topic_by_topic)
    warm_up = started(fleet)
    fleet.register(A, name="broker-10911", topic_by_topic=topic_by_topic)
    fleet.clock.advance(seconds - 0.1)
    assert not warm_up.is_warm(), "a killed name server would say NOT_FOUND of a broker that lives"
    fleet.clock.advance(0.1)
    assert warm_up.is_warm()


def test_with_a_complete_file_it_is_warm_once_its_brokers_are_back() -> None:
    fleet = restarted(A, B)
    warm_up = WarmUp(fleet.state, WARM_UP, snapshot_is_complete=True)
    fleet.register(A, name="broker-10911")
    assert not warm_up.is_warm()
    fleet.register(B, name="broker-20911")
    assert warm_up.is_warm()


def test_a_broker_of_the_file_that_has_left_in_any_way_is_not_waited_for() -> None:
    addrs = [f"10.0.0.1:{port}" for port in (10001, 10002, 10003, 10004)]
    fleet = restarted(*addrs)
    warm_up = started(fleet, 0.0)
    fleet.unregister(addrs[0], name="broker-10001")
    fleet.register("10.0.0.2:1", name="broker-10002")
    removed = apply_all_now(
        confirm_broker_loss(fleet.state, lambda live: live.broker_addr == addrs[2], Cause("ConfirmBrokerLoss"))
    )
    assert [gone.reason for gone in removed] == [RemovalReason.LOSS_CONFIRMED]
    fleet.clock.advance(30.1)
    assert not warm_up.is_warm()
    assert [gone.live.broker_addr for gone in fleet.scan()] == [addrs[3]]
    assert warm_up.is_warm()


def test_brokers_that_the_guard_holds_are_not_waited_for() -> None:
    addrs = [f"10.0.0.1:{port}" for port in (10001, 10002, 10003, 10004)]
    fleet = restarted(*addrs)
    warm_up = started(fleet, 0.0)
    channel_id = fleet.state.open_channel()
    for addr in addrs[:3]:
        fleet.register(addr, name=f"broker-{addr[-5:]}", channel_id=channel_id)
    assert fleet.end_channel(channel_id) == []
    assert len(fleet.state.unconfirmed) == 4
    assert not warm_up.is_warm()
    fleet.register(addrs[3], name="broker-10004")
    assert len(fleet.state.unconfirmed) == 3
    assert warm_up.is_warm()


def test_routes_of_a_file_are_served_at_once_though_a_broker_stays_away() -> None:
    fleet = restarted(A, B)
    warm_up = started(fleet)
    assert warm_up.serves()
    fleet.register(A, name=f"broker-{A[-5:]}")
    fleet.clock.advance(WARM_UP)
    assert (warm_up.serves(), warm_up.is_warm()) == (True, False)
