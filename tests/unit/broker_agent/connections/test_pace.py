from __future__ import annotations

from broker_agent.channel import Pace
from tests.support.virtual_clock import VirtualClock


def test_events_beyond_those_of_a_second_wait_for_its_end() -> None:
    clock = VirtualClock()
    pace = Pace(2, clock.monotonic)
    assert [pace.pause(), pace.pause()] == [0.0, 0.0]
    clock.advance(0.25)
    assert pace.pause() == 0.75
    clock.advance(0.75)
    assert [pace.pause(), pace.pause(), pace.pause()] == [0.0, 0.0, 1.0]
