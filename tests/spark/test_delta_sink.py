"""The Delta table next to the log, with the Delta Lake that this Spark works with. `make test-spark` brings both."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from route_pipeline.log.compaction import compact
from route_pipeline.log.delta_mirror import DeltaMirror
from route_pipeline.log.ingest import ingest
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.commits import CHANGES
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.retention import drop_old
from route_pipeline.log.sinks import DELTA, SinkError, check_sink, session_settings
from route_pipeline.session import spark_session
from tests.support.fakes.snapshot_name_server import (
    FakeNamesrv,
    fleet_chunk,
    gone,
    put,
    queue,
    serving,
    snapshot,
    topics_chunk,
)
from tests.support.programs.processes import BIN, NamesrvProcess
from tests.support.registrations import identity, registration
from tests.support.spark_session import FAST_START

JARS = "DELTA_JARS"
"""Environment variable: files of Delta Lake, separated by commas."""
QUICK = {"connectTimeoutSeconds": "1"}
COMMAND_SECONDS = 500
"""On a busy machine: it starts Spark with Delta Lake."""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        check_sink(DELTA, pyspark.__version__)
    except SinkError as error:
        pytest.skip(f"{error}; make test-spark has it")
    if JARS not in os.environ:
        pytest.skip(f"{JARS} does not name the files of Delta Lake: make test-spark fetches them")
    conf = {
        "spark.driver.defaultJavaOptions": FAST_START,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # A thousand tasks to read a log of a few kilobytes otherwise.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    with spark_session("local[2,2]", conf | session_settings(DELTA, os.environ[JARS])) as session:
        yield session


@pytest.fixture
def fake(spark: SparkSession) -> Iterator[FakeNamesrv]:
    """It starts after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    chunks = (fleet_chunk(id0="10.0.0.1:10911"), topics_chunk(TopicTest=[queue("broker-a")], Other=[queue("broker-a")]))
    with serving(snapshot(*chunks)) as serves:
        yield serves


@pytest.fixture
def store(tmp_path: Path) -> RouteLog:
    return RouteLog.create(tmp_path / "log")


def rows_of(frame: DataFrame) -> list[str]:
    """Comparable rows, without the columns that only the table has."""
    return sorted(repr(row) for row in frame.select(sorted({*frame.columns} - {"date", "file"})).collect())


def table(spark: SparkSession, store: RouteLog) -> DataFrame:
    return spark.read.format("delta").load(f"file:{store.store.uri('delta')}")


def assert_mirrored(spark: SparkSession, store: RouteLog) -> None:
    assert rows_of(table(spark, store)) == rows_of(read_changes(spark, store))


def change(fake: FakeNamesrv) -> None:
    """A topic comes and another goes."""
    fake.revision += 2
    fake.changes |= {fake.revision - 1: [put("Short", queue("broker-a"))], fake.revision: [gone("Other")]}


def test_each_batch_is_in_the_table_once_however_often_it_is_copied(
    spark: SparkSession, store: RouteLog, fake: FakeNamesrv
) -> None:
    mirror = DeltaMirror(spark, store)
    ingest(spark, [fake.endpoint], store, QUICK)
    assert mirror.catch_up() == 1
    change(fake)
    ingest(spark, [fake.endpoint], store, QUICK)
    assert mirror.catch_up() == 1
    assert_mirrored(spark, store)
    assert mirror.catch_up() == 0, "nothing is new"

    latest = store.state().files_of(CHANGES)[-1]
    mirror.copy(latest.date, [latest])  # as after a crash that lost the note of it
    assert_mirrored(spark, store)


def test_what_was_missed_is_caught_up_with_and_compaction_and_retention_follow(
    spark: SparkSession, store: RouteLog, fake: FakeNamesrv
) -> None:
    for _ in range(3):
        ingest(spark, [fake.endpoint], store, QUICK)
        change(fake)
    DeltaMirror(spark, store).catch_up()
    assert_mirrored(spark, store)

    assert compact(store).files_after == 1
    DeltaMirror(spark, store).catch_up()
    assert table(spark, store).select("file").distinct().count() == 1
    assert_mirrored(spark, store)

    assert drop_old(spark, store, datetime.now(UTC).date() + timedelta(days=4), keep_days=1)
    DeltaMirror(spark, store).catch_up()
    assert_mirrored(spark, store)


def test_the_command_keeps_the_table_level_with_the_log(spark: SparkSession, tmp_path: Path) -> None:
    command: list[str | Path] = [BIN / "route-pipeline", "ingest", "--out", tmp_path / "log"]
    command += ["--sink", DELTA, "--jars", os.environ[JARS]]
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as namesrv, namesrv.connect() as client:
        for counter, topic in enumerate(("TopicTest", "Other"), 1):
            client.registration.RegisterBroker(registration([topic], identity(), counter), timeout=20)
            ingest_once = [*command, "--namesrv", str(namesrv.endpoint)]
            done = subprocess.run(ingest_once, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
            assert done.returncode == 0, done.stderr
    store = RouteLog.open(tmp_path / "log")
    assert_mirrored(spark, store)
    assert {row["topic"] for row in table(spark, store).select("topic").distinct().collect()} >= {"TopicTest", "Other"}


def test_the_table_keeps_what_it_was_before(spark: SparkSession, store: RouteLog, fake: FakeNamesrv) -> None:
    ingest(spark, [fake.endpoint], store, QUICK)
    mirror = DeltaMirror(spark, store)
    mirror.catch_up()
    before = rows_of(table(spark, store))
    change(fake)
    ingest(spark, [fake.endpoint], store, QUICK)
    mirror.catch_up()
    first = spark.read.format("delta").option("versionAsOf", 0).load(f"file:{store.store.uri('delta')}")
    assert rows_of(first) == before
