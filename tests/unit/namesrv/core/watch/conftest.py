"""The fleet that tests of watches begin with."""

from __future__ import annotations

import pytest

from tests.unit.namesrv.worlds.watched_fleet import WatchedFleet


@pytest.fixture
def fleet() -> WatchedFleet:
    fleet = WatchedFleet()
    fleet.register(topics=["T1", "T2"])
    return fleet
