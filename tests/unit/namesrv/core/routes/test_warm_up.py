"""WarmUp: when a name server can say what is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from namesrv.core.changes import Cause
from namesrv.core.model import RemovalReason
from namesrv.core.removals import confirm_broker_loss
from namesrv.core.warm_up import COMING_BACK_SECONDS, ROCKETMQ_COMING_BACK_SECONDS, WarmUp
from tests.support.core_fleet import A, B, Fleet
from tests.support.state_changes import apply_all_now

WARM_UP = 45.0


def started(fleet: Fleet, warm_up_seconds: float = WARM_UP) -> WarmUp:
    return WarmUp(fleet.state, fleet.clock, warm_up_seconds)


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
    warm_up = WarmUp(fleet.state, fleet.clock, WARM_UP, snapshot_is_complete=True)
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
