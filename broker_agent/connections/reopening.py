"""The pause before a channel that ended is opened again."""

from __future__ import annotations

from dataclasses import dataclass

from broker_agent.timing.clock import Timing
from groundwork.backoff import Backoff


@dataclass(frozen=True, slots=True)
class ReopeningRules:
    """Bounds of the wait before a channel is opened again. Times are in seconds."""

    first: float = 0.2
    """Longest wait after a channel that worked has ended: mostly a passing fault, and the broker is not routed."""
    longest: float = 5.0
    """Longest wait at all. The agents of a name server that was away come back spread over this time."""


class Reopening:
    """Exponential backoff with jitter for one name server.

    A name server that says that it is shutting down, or cannot be reached, will be away for longer than a fault of the
    network. Then the wait is anything up to the longest, so that a thousand agents do not come back in the same second.
    """

    def __init__(self, rules: ReopeningRules, timing: Timing) -> None:
        self._rules = rules
        self._rng = timing.rng
        self._backoff = Backoff(rules.first, rules.longest, rng=timing.rng)
        self._failures = 0

    def succeeded(self) -> None:
        """The name server has accepted a registration, so the next wait is a short one again."""
        self._failures = 0

    def next_wait(self, *, shutting_down: bool) -> float:
        """Seconds to wait after an end, or after a failure to open.

        Args:
            shutting_down: The name server said that it ends.
        """
        self._failures += 1
        if self._failures == 1 and not shutting_down:
            return self._backoff.after(1)
        step = self._rules.longest if shutting_down else self._backoff.step_after(self._failures)
        return self._rng.uniform(min(self._rules.first, step) / 2, step)
