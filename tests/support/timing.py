"""What programs take time and chance from, on a virtual clock."""

from __future__ import annotations

import random

import broker_agent.timing
import nsctl.console.observer
from tests.support.virtual_clock import VirtualClock


class MeanChance(random.Random):
    """Draws what lies in the middle."""

    def random(self) -> float:
        return 0.5


def agent_timing(clock: VirtualClock) -> broker_agent.timing.Timing:
    """An agent's, with a chance of its own that is the same each time."""
    return broker_agent.timing.Timing(clock, clock.wall, random.Random(1))


def console_timing(clock: VirtualClock) -> nsctl.console.observer.Timing:
    """The console's, where chance draws what lies in the middle."""
    return nsctl.console.observer.Timing(clock.wall_millis, clock, clock.sleep, MeanChance())
