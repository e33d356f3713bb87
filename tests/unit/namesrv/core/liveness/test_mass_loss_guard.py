"""Which losses are believed."""

from __future__ import annotations

from namesrv.core.state import Unconfirmed
from tests.support.core_fleet import Fleet


def fleet_of(count: int) -> tuple[Fleet, list[str]]:
    """Brokers with a channel and a topic each."""
    fleet = Fleet()
    channels = []
    for number in range(count):
        channels.append(fleet.heartbeats.open_channel())
        fleet.register(
            f"10.0.0.{number}:10911", name=f"broker-{number}", topics=[f"T{number}"], channel_id=channels[-1]
        )
    return fleet, channels


def test_a_fleet_that_vanishes_little_by_little_within_the_window_is_held_to_the_last_broker() -> None:
    fleet, channels = fleet_of(10)
    for channel in channels:
        fleet.end_channel(channel)
        fleet.clock.advance(2.5)
    assert len(fleet.topics) == 10
    assert set(fleet.state.unconfirmed.values()) == {Unconfirmed.GUARD}
    assert len(fleet.state.unconfirmed) == 10


def test_once_the_window_has_passed_a_single_loss_is_believed_again_while_others_are_held() -> None:
    fleet, channels = fleet_of(10)
    for channel in channels[:6]:
        fleet.end_channel(channel)
    assert len(fleet.state.unconfirmed) == 6
    fleet.clock.advance(31)
    fleet.end_channel(channels[6])
    assert "T6" not in fleet.topics
    assert len(fleet.topics) == 9


def test_a_slave_that_comes_back_beside_a_new_master_brings_the_queues_of_its_group() -> None:
    fleet, channels = fleet_of(4)
    channel = fleet.heartbeats.open_channel()
    fleet.register("10.0.0.10:10911", 1, channel_id=channel)
    fleet.register("10.0.0.11:10911", 0, channel_id=channel)
    fleet.end_channel(channel)
    fleet.register("10.0.0.12:10911", 0, topics=())
    for lost in channels[:3]:
        fleet.end_channel(lost)
    assert fleet.addrs() == {0: "10.0.0.12:10911", 1: "10.0.0.10:10911"}
