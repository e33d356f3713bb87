"""The whole pipeline on an S3 server, asked all its questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.compaction import compact
from route_pipeline.log.history import history
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.retention import drop_old
from route_pipeline.queries import latest_state
from tests.faults.pipeline.life import Life
from tests.support.programs.s3_server import bucket, s3_server
from tests.support.routes.route_history import versions_of
from tests.support.spark_session import spark

__all__ = ["bucket", "s3_server", "spark"]  # pytest finds the fixtures by their names in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture
def life(spark: SparkSession, bucket: str) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(RouteLog.create(f"s3a://{bucket}/routes"), stack)


def test_a_log_on_an_object_store_answers_all_that_one_on_a_disk_does(spark: SparkSession, life: Life) -> None:
    for _ in range(3):
        life.go_on(all_answer=True)
        life.ingest(spark)
    life.check(spark)
    assert compact(life.store).files_after < 4
    life.check(spark)
    versions = history(read_changes(spark, life.store))
    latest = latest_state(life.store.state(), read_changes(spark, life.store), versions)
    assert [one.namesrv for one in latest.namesrvs] == ["ns-a", "ns-b"]
    day = datetime.fromtimestamp(life.clock.wall_millis() / 1000, UTC).date()
    assert drop_old(spark, life.store, day.replace(year=day.year + 1), keep_days=1)
    left = [version for version in versions_of(spark, life.store) if version.end_reason is not None]
    assert left == []
