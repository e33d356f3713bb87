from __future__ import annotations

import random

import pytest

from broker_agent.timing import RegistrationSchedule, ScheduleRules, Timing
from tests.support.virtual_clock import VirtualClock


@pytest.mark.parametrize(
    ("configured", "seconds"),
    [(1, 10), (9_999, 10), (10_000, 10), (30_000, 30), (60_000, 60), (60_001, 60), (10**9, 60)],
)
def test_the_period_is_clamped_as_upstream_clamps_it(configured: int, seconds: float) -> None:
    assert ScheduleRules(configured).period_seconds == seconds


def test_the_first_registration_comes_after_ten_seconds_and_the_others_at_a_jittered_period() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(ScheduleRules(), Timing(clock=clock, rng=random.Random(1)))
    assert schedule.next_delay() == 10
    delays: list[float] = []
    for _ in range(200):
        clock.advance(delays[-1] if delays else 10)
        delays.append(schedule.next_delay())
    assert 27 <= min(delays) < 28
    assert 32 < max(delays) <= 33
    assert sum(delays) / 200 == pytest.approx(30, abs=0.5)


def test_a_round_that_took_its_time_does_not_put_off_the_next_one() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(ScheduleRules(), Timing(clock=clock, rng=random.Random(1)))
    clock.advance(schedule.next_delay() + 6)
    assert 21 <= schedule.next_delay() <= 27


def test_missed_rounds_are_not_made_up_for() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(ScheduleRules(), Timing(clock=clock, rng=random.Random(1)))
    clock.advance(schedule.next_delay() + 3_600)
    assert 27 <= schedule.next_delay() <= 33
