"""The whole pipeline on an S3 server, asked all its questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.compaction import compact
from route_pipeline.log.history import history
from route_pipeline.log.ingest import ingest
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.retention import drop_old
from route_pipeline.queries import latest_state
from tests.support.programs.s3_server import bucket, s3_server
from tests.support.routes.expected_history import ExpectedHistory
from tests.support.routes.fleet_life import FleetLife, serving_life
from tests.support.routes.route_history import versions_of
from tests.support.spark_session import spark
from tests.support.virtual_clock import VirtualClock

__all__ = ["bucket", "s3_server", "spark"]  # pytest finds the fixtures by their names in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SEED = 31
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}


class Life:
    """Two name servers, what happens to them, and the log of it that there should be."""

    def __init__(self, log: RouteLog, stack: ExitStack) -> None:
        self.log = log
        self.clock = VirtualClock()
        self.namesrvs = [stack.enter_context(serving_life(name, self.clock)) for name in ("ns-a", "ns-b")]
        self.expected = ExpectedHistory()
        self._life = FleetLife(SEED, self.namesrvs, self.clock)

    def go_on(self) -> None:
        """Something happens; then the model is told of the next ingest."""
        self._life.pass_time(120)
        self._life.end_outages()
        for namesrv in self.namesrvs:
            self.expected.ingest(namesrv, self.clock.wall_millis())

    def ingest(self, spark: SparkSession) -> None:
        now = datetime.fromtimestamp(self.clock.wall_millis() / 1000, UTC)
        ingest(spark, [namesrv.endpoint for namesrv in self.namesrvs], self.log, OPTIONS, now=lambda: now)

    def check(self, spark: SparkSession) -> None:
        """The log's history is the model's, and no row of a change is there twice."""
        assert sorted(versions_of(spark, self.log), key=repr) == sorted(self.expected.ended(), key=repr)
        key = ["namesrv", "epoch", "revision", "table_name", "key", "from_snapshot", "op", "after_revision"]
        rows = read_changes(spark, self.log).where("table_name != 'reads'").select(*key).collect()
        assert len(rows) == len(set(rows))


@pytest.fixture
def life(spark: SparkSession, bucket: str) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(RouteLog.create(f"s3a://{bucket}/routes"), stack)


def test_a_log_on_an_object_store_answers_all_that_one_on_a_disk_does(spark: SparkSession, life: Life) -> None:
    for _ in range(3):
        life.go_on()
        life.ingest(spark)
    life.check(spark)
    assert compact(life.log).files_after < 4
    life.check(spark)
    versions = history(read_changes(spark, life.log))
    latest = latest_state(life.log.state(), read_changes(spark, life.log), versions)
    assert [one.namesrv for one in latest.namesrvs] == ["ns-a", "ns-b"]
    day = datetime.fromtimestamp(life.clock.wall_millis() / 1000, UTC).date()
    assert drop_old(spark, life.log, day.replace(year=day.year + 1), keep_days=1)
    left = [version for version in versions_of(spark, life.log) if version.end_reason is not None]
    assert left == []
