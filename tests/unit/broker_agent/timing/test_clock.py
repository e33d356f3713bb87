from __future__ import annotations

import random

import pytest

from broker_agent.timing import RegistrationSchedule, Timing
from tests.support.virtual_clock import VirtualClock


def test_the_first_registration_comes_after_ten_seconds_and_the_others_at_a_jittered_period() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(30.0, Timing(clock=clock, rng=random.Random(1)))
    assert schedule.next_delay() == 10
    delays: list[float] = []
    for _ in range(200):
        clock.advance(delays[-1] if delays else 10)
        delays.append(schedule.next_delay())
    assert 27 <= min(delays) < 28
    assert 32 < max(delays) <= 33
    assert sum(delays) / 200 == pytest.approx(30, abs=0.5)


def test_the_first_registration_comes_after_a_period_that_is_shorter_than_ten_seconds() -> None:
    assert RegistrationSchedule(2.0, Timing(clock=VirtualClock())).next_delay() == 2


def test_a_round_that_took_its_time_does_not_put_off_the_next_one() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(30.0, Timing(clock=clock, rng=random.Random(1)))
    clock.advance(schedule.next_delay() + 6)
    assert 21 <= schedule.next_delay() <= 27


def test_missed_rounds_are_not_made_up_for() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(30.0, Timing(clock=clock, rng=random.Random(1)))
    clock.advance(schedule.next_delay() + 3_600)
    assert 27 <= schedule.next_delay() <= 33
