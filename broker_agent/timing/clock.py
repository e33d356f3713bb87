"""Clocks and randomness, injected so that tests run on virtual time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the agent takes time and chance from."""

    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds: every deadline and delay goes by it."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since the Unix epoch: only ever reported."""
    rng: random.Random = field(default_factory=random.Random)
    """Source of jitter."""


def backoff_seconds(attempt: int, initial: float, longest: float, rng: random.Random) -> float:
    """Exponential backoff with jitter, so that a fleet of agents does not come back in one beat.

    Args:
        attempt: Number of failures before this wait, from 0.
        initial: Longest wait after the first failure, seconds.
        longest: Longest wait at all, seconds.
        rng: Where the jitter comes from: the wait is half to all of the exponential step.
    """
    exponent = min(attempt, 32)  # beyond it the cap has long been reached, and a float could overflow
    return min(longest, initial * 2.0**exponent) * rng.uniform(0.5, 1.0)
