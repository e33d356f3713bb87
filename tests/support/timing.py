"""What programs take time and chance from, on a virtual clock."""

from __future__ import annotations

import random

import broker_agent.timing
from tests.support.virtual_clock import VirtualClock


def agent_timing(clock: VirtualClock) -> broker_agent.timing.Timing:
    """An agent's, with a chance of its own that is the same each time."""
    return broker_agent.timing.Timing(clock, clock.wall, random.Random(1), clock.wait)
