"""An hour of a fleet's life on a virtual clock, through the whole pipeline: its history is exactly the expected one."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.ingest import ingest
from route_pipeline.log.protocol.route_log import RouteLog
from tests.support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv
from tests.support.routes.route_history import versions_of
from tests.support.spark_session import spark
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

SEED = 9191
INGESTS = 12
SECONDS_BETWEEN = 300


@pytest.mark.timeout(300)
def test_the_history_of_an_hour_is_the_expected_one(spark: SparkSession, tmp_path: Path) -> None:
    store = RouteLog.create(tmp_path / "log")
    clock = VirtualClock()
    expected = ExpectedHistory()
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(LivingNamesrv(name, clock)) for name in ("ns-a", "ns-b", "ns-c")]
        life = FleetLife(SEED, namesrvs, clock)
        for number in range(INGESTS):
            if all(namesrv.lost for namesrv in namesrvs) or number == 0:
                life.end_outages()
            now = datetime.fromtimestamp(clock.wall_millis() / 1000, UTC)
            ingest(
                spark,
                [namesrv.endpoint for namesrv in namesrvs],
                store,
                {"onCompacted": "resync"},
                now=lambda now=now: now,  # type: ignore[misc]
            )
            for namesrv in namesrvs:
                expected.ingest(namesrv, clock.wall_millis())
            life.pass_time(SECONDS_BETWEEN)

    found = versions_of(spark, store)
    assert sorted(found, key=repr) == sorted(expected.ended(), key=repr)
    reasons = Counter(version.end_reason for version in found)
    wanted = {None, "CHANGED", "NOT_IN_SNAPSHOT", "UNREGISTERED", "CHANNEL_CLOSED", "EXPIRED", "GROUP_GONE"}
    assert wanted <= set(reasons)
    assert expected.snapshots > len(namesrvs), "there were restarts or compactions"
    assert len(found) > 200
