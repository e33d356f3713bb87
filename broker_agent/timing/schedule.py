"""The schedule of periodic registrations."""

from __future__ import annotations

from dataclasses import dataclass

from broker_agent.timing.clock import Timing


@dataclass(frozen=True, slots=True)
class ScheduleRules:
    """How often the broker registers."""

    period_millis: int = 30_000
    """Time between two registrations (RocketMQ: registerNameServerPeriod)."""
    shortest_millis: int = 10_000
    """The period is never shorter (RocketMQ: BrokerController.start clamps it)."""
    longest_millis: int = 60_000
    """The period is never longer, likewise."""
    jitter: float = 0.1
    """Share of the period that a registration may come earlier or later, so that a fleet started at once spreads."""
    first_delay_millis: int = 10_000
    """Time from the registration at start to the first periodic one (RocketMQ: BrokerController.start)."""

    @property
    def period_seconds(self) -> float:
        """The period in force."""
        return max(self.shortest_millis, min(self.longest_millis, self.period_millis)) / 1000


class RegistrationSchedule:
    """Due times at a jittered period, counted from the start and not from the end of the round before.

    A round that waits for a dead name server therefore does not put off the next one.
    """

    def __init__(self, rules: ScheduleRules, timing: Timing) -> None:
        self._rules = rules
        self._timing = timing
        self._due: float | None = None

    def next_delay(self) -> float:
        """Seconds from now to the next registration; 0 if it is overdue."""
        now = self._timing.clock()
        period, jitter = self._rules.period_seconds, self._rules.jitter
        if self._due is None:
            self._due = now + self._rules.first_delay_millis / 1000
        else:
            # Counted from now if a whole period was missed (a suspended machine): rounds are not made up for.
            start = self._due if now < self._due + period else now
            self._due = start + period * self._timing.rng.uniform(1 - jitter, 1 + jitter)
        return max(0.0, self._due - now)
