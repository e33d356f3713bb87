"""Liveness: brokers are removed for their silence or with their channel, and some get more time."""

from __future__ import annotations

import itertools

import pytest
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from namesrv.app.access import NamedBrokers
from namesrv.app.writer import INLINE_TOPICS
from namesrv.core.liveness import Liveness
from namesrv.core.model import BrokerKey, Doubt, LiveKey
from namesrv.core.removals import BROKERS_PER_CHANGE, on_channel_destroy, scan_not_active_broker
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
