"""StallDetector: a stall of the process is nobody's silence, and clocks that step are no time."""

from __future__ import annotations

import asyncio

import pytest

from namesrv.app.stall_detector import DELAYS_SECONDS, STALL_SECONDS, TICK_SECONDS, StallDetector
from tests.support.core_fleet import A, Fleet
from tests.support.virtual_clock import VirtualClock


class Detector(StallDetector):
    """A detector with a clock of its own, and the stalls that it has told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.told: list[float] = []
        super().__init__(self.clock.monotonic, self.told.append, doubtful_seconds=10.0)


@pytest.fixture
def stalls() -> Detector:
    return Detector()


def test_ticks_in_time_and_small_delays_are_no_stall(stalls: Detector) -> None:
    for late in (0.0, 0.5, STALL_SECONDS):
        stalls.clock.advance(TICK_SECONDS + late)
        stalls.check()
    assert stalls.told == []
    assert not stalls.channel_ends_are_doubtful()


def test_a_start_that_takes_long_is_no_stall(stalls: Detector) -> None:
    stalls.clock.advance(TICK_SECONDS + 300.0)
    stalls.begin()
    assert not stalls.channel_ends_are_doubtful()
    assert (stalls.told, stalls.longest_delay()) == ([], 0.0)


async def test_a_stall_before_the_first_tick_counts_as_callers_may_have_come(stalls: Detector) -> None:
    stalls.begin()
    stalls.clock.advance(TICK_SECONDS + 300.0)
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0)
    watching.cancel()
    assert stalls.longest_delay() == 300.0
    assert stalls.channel_ends_are_doubtful()
    assert stalls.told == [300.0]


def test_a_stall_is_told_once_and_channel_ends_are_doubtful_from_its_end_on(stalls: Detector) -> None:
    stalls.clock.advance(5.0)
    assert stalls.channel_ends_are_doubtful()
    assert stalls.told == [pytest.approx(5.0 - TICK_SECONDS)]
    for _ in range(39):
        stalls.clock.advance(TICK_SECONDS)
        assert stalls.channel_ends_are_doubtful()
    stalls.clock.advance(TICK_SECONDS)
    assert not stalls.channel_ends_are_doubtful()
    assert len(stalls.told) == 1


def test_delays_older_than_a_minute_are_forgotten_and_no_more_than_a_minute_of_them_is_kept(stalls: Detector) -> None:
    stalls.clock.advance(TICK_SECONDS + 0.5)
    assert stalls.longest_delay() == 0.5, "a tick that is overdue counts before it comes"
    stalls.tick()
    for _ in range(round(DELAYS_SECONDS / TICK_SECONDS)):
        assert stalls.longest_delay() == 0.5
        stalls.clock.advance(TICK_SECONDS)
        stalls.tick()
    assert stalls.longest_delay() == 0.0


def test_a_tick_during_a_look_at_the_delays_disturbs_nothing() -> None:
    clock = VirtualClock()

    class TimeDuringATick(float):
        """A time at which the event loop ticks while another thread, which serves metrics, compares it."""

        def __ge__(self, other: float) -> bool:
            detector.tick()
            return super().__ge__(other)

    detector = StallDetector(lambda: TimeDuringATick(clock.monotonic()), lambda _: None, doubtful_seconds=10.0)
    for _ in range(2):
        clock.advance(TICK_SECONDS + 0.5)
        detector.tick()
    assert detector.longest_delay() == pytest.approx(0.5)


HOUR = 3_600.0
EXPIRY = 120.0


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_nobody_expires_because_the_wall_clock_steps_and_everybody_in_time_who_is_silent(
    fleet: Fleet, step: float
) -> None:
    fleet.register(A)
    fleet.clock.wall_ahead += step
    assert fleet.scan() == []
    fleet.clock.advance(EXPIRY - 1)
    assert fleet.scan() == []
    fleet.clock.advance(2)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [A]
