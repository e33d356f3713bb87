"""Clocks that step and processes that stop, for longer than a test can wait: on a virtual clock."""

from __future__ import annotations

import pytest

from namesrv.app.stall_detector import TICK_SECONDS, StallDetector
from tests.support.core_fleet import A, B, Fleet

HOUR = 3_600.0
FIVE_MINUTES = 300.0
EXPIRY = 120.0


class SteppingFleet(Fleet):
    """A fleet whose wall clock can be set."""

    def set_wall_clock(self, seconds: float) -> None:
        """Steps the wall clock by that much; the monotonic one continues as before."""
        self.clock.wall_ahead += seconds


@pytest.fixture
def fleet() -> SteppingFleet:
    return SteppingFleet()


def _stalls(fleet: Fleet) -> StallDetector:
    return StallDetector(fleet.clock.monotonic, fleet.heartbeats.grant_more_time, doubtful_seconds=10.0)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_nobody_expires_because_the_wall_clock_steps_and_everybody_in_time_who_is_silent(
    fleet: SteppingFleet, step: float
) -> None:
    fleet.register(A)
    fleet.set_wall_clock(step)
    assert fleet.scan() == []
    fleet.clock.advance(EXPIRY - 1)
    assert fleet.scan() == []
    fleet.clock.advance(2)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [A]


def test_a_name_server_that_was_stopped_for_five_minutes_expires_nobody(fleet: SteppingFleet) -> None:
    stalls = _stalls(fleet)
    fleet.register(A)
    fleet.register(B, name="broker-b")
    fleet.clock.advance(FIVE_MINUTES)
    stalls.check()
    assert stalls.channel_ends_are_doubtful()
    assert fleet.scan() == []
    for _ in range(int((EXPIRY - 1) / TICK_SECONDS)):
        fleet.clock.advance(TICK_SECONDS)
        stalls.check()
    assert fleet.scan() == [], "its brokers have all of their time again"
    for _ in range(int(2 / TICK_SECONDS)):
        fleet.clock.advance(TICK_SECONDS)
        stalls.check()
    assert {gone.live.broker_addr for gone in fleet.scan()} == {A, B}
