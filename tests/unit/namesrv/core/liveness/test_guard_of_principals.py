"""What the mass-loss guard remembers of each principal."""

from __future__ import annotations

from namesrv.core.policy import Behaviour
from tests.support.core_fleet import Fleet


def test_what_the_guard_remembers_ends_with_the_window(fleet: Fleet) -> None:
    channel = fleet.heartbeats.open_channel()
    for number in range(150):
        fleet.register(f"flood.{number}:1", number, name="flood", channel_id=channel, principal="x")
    fleet.end_channel(channel)
    fleet.clock.advance(Behaviour().mass_loss_window_seconds + 1)
    fleet.register(principal="x")
    guard = fleet.state.guard
    assert (len(guard._principals), len(guard._losses)) == (1, 0)
    assert (dict(guard._brokers), dict(guard._lost)) == ({"x": 1}, {})
