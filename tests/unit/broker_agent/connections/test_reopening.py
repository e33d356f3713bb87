from __future__ import annotations

import random
from collections import Counter

import pytest

from broker_agent.channel import LONGEST_WAIT_SECONDS, Reopening
from broker_agent.timing import Timing


def reopening(seed: int = 1) -> Reopening:
    return Reopening(LONGEST_WAIT_SECONDS, Timing(rng=random.Random(seed)))


def came_back(seed: int, away_seconds: float, *, said_so: bool) -> float:
    """When one agent has its channel again after a name server went away at 0."""
    waits = reopening(seed)
    now = waits.next_wait(shutting_down=said_so)
    while now < away_seconds:
        now += waits.next_wait(shutting_down=False)
    return now


def test_a_channel_that_breaks_once_is_reopened_within_a_fifth_of_a_second() -> None:
    assert all(0.1 <= reopening(seed).next_wait(shutting_down=False) <= 0.2 for seed in range(100))


def test_the_longest_wait_doubles_up_to_five_seconds_until_a_registration_succeeds() -> None:
    waits = [reopening(seed) for seed in range(300)]
    for longest in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        seen = [wait.next_wait(shutting_down=False) for wait in waits]
        assert 0.9 * longest < max(seen) <= longest
    for wait in waits:
        wait.succeeded()
    assert max(wait.next_wait(shutting_down=False) for wait in waits) <= 0.2


@pytest.mark.parametrize("away_seconds", [2.0, 5.0, 10.0, 60.0])
@pytest.mark.parametrize("said_so", [True, False])
def test_a_thousand_agents_come_back_within_seconds_and_not_all_in_the_same_one(
    away_seconds: float, said_so: bool
) -> None:
    times = [came_back(seed, away_seconds, said_so=said_so) for seed in range(1_000)]
    in_each_second = Counter(int(time - away_seconds) for time in times)
    assert max(times) <= away_seconds + 5.0
    assert max(in_each_second.values()) < 600


def test_the_agents_of_a_name_server_that_restarts_at_once_come_back_spread_if_it_said_that_it_ends() -> None:
    in_each_second = Counter(int(came_back(seed, 0.0, said_so=True)) for seed in range(1_000))
    assert max(in_each_second.values()) < 300
