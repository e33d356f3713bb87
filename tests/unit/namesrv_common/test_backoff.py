from __future__ import annotations

import random

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from namesrv_common.backoff import Backoff


def test_the_backoff_doubles_up_to_its_longest_with_half_of_it_jitter() -> None:
    backoff = Backoff(0.2, 5.0, rng=random.Random(1))
    for failures, step in enumerate([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], start=1):
        waits = [backoff.after(failures) for _ in range(300)]
        assert step / 2 <= min(waits) < step * 0.55
        assert step * 0.95 < max(waits) <= step
        assert backoff.step_after(failures) == step
    assert backoff.after(10**6) <= 5.0


@pytest.mark.parametrize(
    ("jitter", "factor", "steps"),
    [((0.8, 1.2), 1.6, [0.2, 0.32, 0.512, 0.8192]), ((0.5, 1.5), 2.0, [0.2, 0.4, 0.8, 1.0])],
)
def test_jitter_and_growth_are_as_they_are_given_and_jitter_may_pass_the_longest_step(
    jitter: tuple[float, float], factor: float, steps: list[float]
) -> None:
    backoff, same_chance = Backoff(0.2, 1.0, jitter, rng=random.Random(7), factor=factor), random.Random(7)
    for failures, step in enumerate(steps, start=1):
        assert backoff.after(failures) == pytest.approx(step * same_chance.uniform(*jitter))


def test_a_loop_of_tenacity_waits_as_the_backoff_says() -> None:
    class Failed(Exception):
        pass

    def fail() -> None:
        raise Failed

    pauses: list[float] = []
    retrying = Retrying(
        retry=retry_if_exception_type(Failed),
        stop=stop_after_attempt(4),
        wait=Backoff(1.0, 3.0, rng=random.Random(3)),
        sleep=pauses.append,
        reraise=True,
    )
    with pytest.raises(Failed):
        retrying(fail)
    expected = Backoff(1.0, 3.0, rng=random.Random(3))
    assert pauses == [expected.after(failures) for failures in (1, 2, 3)]
