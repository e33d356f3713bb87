"""Reads by a real Spark of what the unit tests see without one: progress of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tests.support.fakes.snapshot_name_server import (
    FakeNamesrv,
    fleet_chunk,
    put,
    queue,
    serving,
    snapshot,
    topics_chunk,
)
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def fake(spark: SparkSession) -> Iterator[FakeNamesrv]:
    """It starts after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    chunks = (
        fleet_chunk(id0="10.0.0.1:10911"),
        topics_chunk(TopicTest=[queue("broker-a")], Other=[queue("broker-a")], Third=[queue("broker-b")]),
    )
    with serving(snapshot(*chunks)) as serves:
        yield serves


def test_the_progress_of_a_stream_says_how_far_behind_it_is(
    spark: SparkSession, fake: FakeNamesrv, tmp_path: Path
) -> None:
    options = {"endpoints": str(fake.endpoint), "table": "changes", "maxRevisionsPerTrigger": "1"}
    changes = spark.readStream.format("namesrv").options(**options).load()
    writer = changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))

    told: list[StreamingQueryProgress] = []

    def run_once() -> None:
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        query.awaitTermination()
        told.extend(query.recentProgress)

    def run() -> list[int]:
        told.clear()
        run_once()
        return [behind(one) for one in told]

    def behind(progress: StreamingQueryProgress) -> int:
        source = progress["sources"][0]
        at, there = (json.loads(source[name])["namesrvs"] for name in ("endOffset", "latestOffset"))
        return sum(there[address]["revision"] - position["revision"] for address, position in at.items())

    assert run()[0] == 0
    fake.changes = {revision: [put("New", queue("broker-a"))] for revision in (8, 9, 10)}
    fake.revision = 10
    assert run()[:3] == [2, 1, 0]


def test_java_has_room_for_the_code_of_many_queries(spark: SparkSession) -> None:
    assert spark._jvm is not None
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    sizes = {pool.getName(): pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code")}
    assert sum(sizes.values()) > 200 * 2**20, sizes
