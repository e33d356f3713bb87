"""Clocks and randomness, injected so that tests run on virtual time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """The agent's clocks and source of randomness."""

    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds: every deadline and delay goes by it."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since the Unix epoch: only ever reported."""
    rng: random.Random = field(default_factory=random.Random)
    """Source of jitter."""
