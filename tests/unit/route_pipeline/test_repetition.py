"""What is done every so often, on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from route_pipeline.commands import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, repeat
from route_pipeline.log.place import LogError, StoreError
from tests.support.virtual_clock import VirtualClock


@dataclass
class Worker:
    """Works as long as it is told to each time, fails where it is told to, and ends with an error that stays."""

    seconds: list[float | Exception]
    clock: VirtualClock = field(default_factory=VirtualClock)
    started_at: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.started_at.append(self.clock.seconds)
        if not self.seconds:
            raise LogError("another table is there")
        outcome = self.seconds.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.clock.advance(outcome)

    def run(self, every: float) -> list[float]:
        """Seconds between the starts."""
        with pytest.raises(LogError):
            repeat(self, every, sleep=self.clock.advance, clock=self.clock)
        return [later - before for before, later in zip(self.started_at, self.started_at[1:], strict=False)]


def test_the_time_between_two_starts_is_kept_and_long_work_is_followed_at_once() -> None:
    assert Worker([1.0, 10.0, 99.0, 5.0]).run(60) == [60, 60, 99, 60]


def test_failed_work_is_tried_again_after_growing_pauses_that_chance_makes_shorter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures: list[float | Exception] = [StoreError("gone")] * 40
    waits = Worker([*failures, 1.0]).run(3600)[:40]
    assert all(SHORTEST_RETRY_SECONDS <= wait <= LONGEST_RETRY_SECONDS for wait in waits)
    assert all(wait <= 2.0 * 2**number for number, wait in enumerate(waits))
    assert len(set(waits)) > 35, "by chance"
    assert max(waits) > 10
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 40
    assert told[0].startswith("route-pipeline: gone (trying again in ")
