"""Signs of life: who is removed for its silence or with its channel, and who is given more time."""

from __future__ import annotations

import itertools

import pytest

from namesrv.core.edit import SLICE
from namesrv.core.errors import BrokerNotRegistered
from namesrv.core.heartbeats import DOUBT_SLICE
from namesrv.core.model import BrokerKey, DataVersion, RemovalReason
from namesrv.core.slices import run_sync
from tests.support.core_fleet import CLUSTER, A, B, Fleet

NEXT_VERSION = DataVersion(2_000, 2)


def test_the_end_of_a_channel_removes_its_brokers_at_once(fleet: Fleet) -> None:  # [29, 31]
    channel_id = fleet.manager.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.register(B, name="broker-b", channel_id=channel_id)
    removed = fleet.end_channel(channel_id)
    assert [(gone.live.broker_addr, gone.reason) for gone in removed] == [
        (A, RemovalReason.CHANNEL_CLOSED),
        (B, RemovalReason.CHANNEL_CLOSED),
    ]
    assert fleet.route() is None


def test_master_and_slave_leave_with_their_own_channels(fleet: Fleet) -> None:  # [30]
    masters, slaves = fleet.manager.open_channel(), fleet.manager.open_channel()
    fleet.register(A, channel_id=masters)
    fleet.register(B, 1, channel_id=slaves)
    fleet.end_channel(masters)
    assert fleet.addrs() == {1: B}
    fleet.end_channel(slaves)
    assert fleet.route() is None


def test_an_old_channel_that_ends_after_a_new_registration_changes_nothing(fleet: Fleet) -> None:
    old, new = fleet.manager.open_channel(), fleet.manager.open_channel()
    fleet.register(A, channel_id=old)
    fleet.register(A, channel_id=new)
    assert fleet.end_channel(old) == []
    assert fleet.addrs() == {0: A}


def test_the_end_of_a_channel_spares_a_broker_that_came_back_without_one(fleet: Fleet) -> None:
    channel_id = fleet.manager.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.register(A)
    assert fleet.end_channel(channel_id) == []
    assert fleet.addrs() == {0: A}


def test_a_broker_is_removed_only_after_more_than_its_timeout_of_silence(fleet: Fleet) -> None:  # [37]
    fleet.register()
    fleet.clock.advance(120.0)
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert [gone.reason for gone in fleet.scan()] == [RemovalReason.EXPIRED]
    assert fleet.route() is None


def test_a_broker_that_asks_for_another_timeout_gets_it(fleet: Fleet) -> None:
    fleet.register(timeout_seconds=30.0)
    fleet.clock.advance(30.001)
    assert len(fleet.scan()) == 1


@pytest.mark.parametrize("sign", ["register", "query", "heartbeat"])
def test_any_sign_of_life_renews_the_timeout(fleet: Fleet, sign: str) -> None:
    fleet.register()
    fleet.clock.advance(100.0)
    if sign == "register":
        fleet.register()
    elif sign == "query":
        fleet.query()
    else:
        fleet.manager.broker_heartbeat(BrokerKey(CLUSTER, "broker-a"), 0, A)
    fleet.clock.advance(100.0)
    assert fleet.scan() == []
    assert fleet.manager.revision == 1


def test_a_query_with_another_version_renews_nothing(fleet: Fleet) -> None:  # RocketMQ 4
    fleet.register()
    fleet.clock.advance(100.0)
    fleet.query(version=NEXT_VERSION)
    fleet.clock.advance(21.0)
    assert len(fleet.scan()) == 1


def test_a_broker_heard_of_while_its_expiry_is_prepared_stays(fleet: Fleet) -> None:
    fleet.register(topics=[f"t{number}" for number in range(SLICE + 1)])
    fleet.clock.advance(121.0)
    scan = fleet.manager.scan_not_active_broker()
    next(scan)
    fleet.query()
    assert run_sync(scan) == []
    assert len(fleet.topics) == SLICE + 1


def test_a_stalled_name_server_gives_everyone_more_time(fleet: Fleet) -> None:
    fleet.register()
    fleet.clock.advance(300.0)
    fleet.manager.grant_more_time(300.0)
    assert fleet.scan() == []
    fleet.clock.advance(120.001)
    assert len(fleet.scan()) == 1


def test_a_doubted_end_of_a_channel_leaves_its_brokers_some_time_to_register_again(fleet: Fleet) -> None:
    channel_id = fleet.manager.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.register(B, name="broker-b", channel_id=channel_id)
    fleet.manager.end_channel(channel_id)
    assert run_sync(fleet.manager.doubt_channel_end(channel_id, 60.0)) == 2
    assert fleet.end_channel(channel_id) == []
    fleet.clock.advance(59.0)
    fleet.register(B, name="broker-b")
    fleet.clock.advance(1.001)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [A]
    fleet.clock.advance(100.0)
    assert fleet.scan() == []


def test_a_heartbeat_of_an_unknown_broker_is_refused(fleet: Fleet) -> None:
    with pytest.raises(BrokerNotRegistered, match="broker-a"):
        fleet.manager.broker_heartbeat(BrokerKey(CLUSTER, "broker-a"), 0, A)


def test_a_channel_is_idle_once_none_of_its_brokers_was_heard_of_for_the_expiry_time(fleet: Fleet) -> None:
    used, unused = fleet.manager.open_channel(), fleet.manager.open_channel()
    fleet.clock.advance(100.0)
    fleet.register(channel_id=used)
    fleet.clock.advance(20.001)
    assert run_sync(fleet.manager.idle_channels()) == [unused]
    fleet.clock.advance(100.0)
    assert set(run_sync(fleet.manager.idle_channels())) == {used, unused}


def test_a_channel_of_many_brokers_that_ends_is_doubted_in_slices_and_only_for_those_that_have_no_other(
    fleet: Fleet,
) -> None:
    manager = fleet.manager
    channel_id, count = manager.open_channel(), 3 * DOUBT_SLICE
    addrs = [f"10.0.{number >> 8}.{number & 255}:10911" for number in range(count)]
    for number, addr in enumerate(addrs):
        fleet.register(addr, topics=(), name=f"b-{number}", channel_id=channel_id, timeout_seconds=20.0)
    manager.end_channel(channel_id)
    steps = manager.doubt_channel_end(channel_id, 60.0)
    next(steps)
    last = max(addrs)  # they come in order: this one is still to come
    fleet.unregister(last, name=f"b-{addrs.index(last)}")
    assert sum(1 for _ in steps) == 2
    fleet.clock.advance(59.0)
    assert fleet.scan() == []
    fleet.clock.advance(1.001)
    assert fleet.scan() == []  # the guard holds so many
    assert len(manager.unconfirmed) == count - 1


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
    fleet.manager.channels._new_channel_id = lambda: _Counted(f"channel-{next(numbers)}")
    channels = [fleet.manager.open_channel() for _ in range(500)]
    for number, channel_id in enumerate(channels):
        fleet.register(f"10.0.{number >> 8}.{number & 255}:10911", name=f"b-{number}", channel_id=channel_id)
        fleet.manager.end_channel(channel_id)
    _Counted.compared = 0
    run_sync(fleet.manager.on_channel_destroy(channels))
    assert _Counted.compared < 20 * len(channels)
