"""An hour of a fleet's life on a virtual clock, through the whole pipeline: its history is exactly the expected one."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv
from tests.support.routes.route_history import versions_of
from tests.support.virtual_clock import VirtualClock

SEED = 9191
INGESTS = 12
SECONDS_BETWEEN = 300


def test_the_history_of_an_hour_is_the_expected_one(tmp_path: Path) -> None:
    clock = VirtualClock()
    place = Place(str(tmp_path / "log"))
    log = RouteLog(place, now=lambda: datetime.fromtimestamp(clock.wall_millis() / 1000, UTC))
    expected = ExpectedHistory()
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(LivingNamesrv(name, clock)) for name in ("ns-a", "ns-b", "ns-c")]
        life = FleetLife(SEED, namesrvs, clock)
        for number in range(INGESTS):
            if all(namesrv.lost for namesrv in namesrvs) or number == 0:
                life.end_outages()
            endpoints = [namesrv.endpoint for namesrv in namesrvs]
            Ingester(ingest_options(endpoints, {"onCompacted": "resync"}), log).once()
            for namesrv in namesrvs:
                expected.ingest(namesrv, clock.wall_millis())
            life.pass_time(SECONDS_BETWEEN)

    found = versions_of(place)
    assert sorted(found, key=repr) == sorted(expected.ended(), key=repr)
    reasons = Counter(version.end_reason for version in found)
    wanted = {None, "CHANGED", "NOT_IN_SNAPSHOT", "UNREGISTERED", "CHANNEL_CLOSED", "EXPIRED", "GROUP_GONE"}
    assert wanted <= set(reasons)
    assert expected.snapshots > len(namesrvs), "there were restarts or compactions"
    assert len(found) > 200
