"""When the periodic registrations are due."""

from __future__ import annotations

from broker_agent.timing import Timing

FIRST_DELAY_SECONDS = 10.0
"""Time from the registration at start to the first periodic one (RocketMQ: BrokerController.start)."""
SHORTEST_PERIOD_MILLIS, LONGEST_PERIOD_MILLIS = 10_000, 60_000
"""Bounds of the period (RocketMQ: BrokerController.start clamps registerNameServerPeriod to them)."""
JITTER = 0.1
"""Share of the period that a registration may come earlier or later, so that a fleet started at once spreads out."""


def clamped_period_seconds(period_millis: int) -> float:
    """The period in force for a configured ``registerNameServerPeriod``."""
    return max(SHORTEST_PERIOD_MILLIS, min(LONGEST_PERIOD_MILLIS, period_millis)) / 1000


class RegistrationSchedule:
    """Due times at a jittered period, counted from the start and not from the end of the round before.

    A round that waits for a dead name server therefore does not put off the next one.
    """

    def __init__(self, period_millis: int, timing: Timing, first_delay_seconds: float = FIRST_DELAY_SECONDS) -> None:
        self._period = clamped_period_seconds(period_millis)
        self._timing = timing
        self._first_delay = first_delay_seconds
        self._due: float | None = None

    def next_delay(self) -> float:
        """Seconds from now to the next registration; 0 if it is overdue."""
        now = self._timing.clock()
        if self._due is None:
            self._due = now + self._first_delay
        else:
            # Counted from now if a whole period was missed (a suspended machine): rounds are not made up for.
            start = self._due if now < self._due + self._period else now
            self._due = start + self._period * self._timing.rng.uniform(1 - JITTER, 1 + JITTER)
        return max(0.0, self._due - now)
