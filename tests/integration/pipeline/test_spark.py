"""The data source and the sink with a real Spark, against fakes; and the log that threads and Spark write in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from route_pipeline import schemas
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions, views_of
from route_pipeline.spark_errors import one_line
from tests.support.fakes.snapshot_name_server import QUICK, FakeNamesrv, Pair, gone, put, queue, two_alike
from tests.support.spark_session import spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

__all__ = ["spark"]  # pytest finds the fixture by its name in this module


@pytest.fixture
def pair(spark: SparkSession) -> Iterator[Pair]:
    """Two name servers with the same tables. They start after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with two_alike() as fakes:
        yield fakes


def test_the_schema_that_spark_sees_is_the_declared_one(spark: SparkSession, pair: Pair) -> None:
    for table in (*schemas.ROW_COLUMNS, schemas.CHANGES):
        loaded = spark.read.format("namesrv").options(endpoints=str(pair[0].endpoint), table=table).load()
        assert loaded.schema.names == arrow_schema(table).names
        assert loaded.count() > 0, table
    brokers = spark.read.format("namesrv").options(endpoints=str(pair[0].endpoint), table="brokers").load()
    assert brokers.schema["broker_id"].metadata == {"comment": "0 is the master, above 0 a slave"}
    assert not brokers.schema["broker_id"].nullable


def test_two_actions_on_the_rows_of_all_name_servers_read_one_pinned_revision(spark: SparkSession, pair: Pair) -> None:
    endpoints = ";".join(str(fake.endpoint) for fake in pair)
    routes = spark.read.format("namesrv").option("ENDPOINTS", endpoints).load()

    assert routes.count() == 4
    rows = routes.collect()

    assert sorted((row.namesrv, row.topic, row.write_queue_nums) for row in rows) == [
        ("ns-a", "Other", 2),
        ("ns-a", "TopicTest", 8),
        ("ns-b", "Other", 2),
        ("ns-b", "TopicTest", 8),
    ]
    assert {request.pin_id for fake in pair for request in fake.snapshot_requests} == {"pin-1"}


def test_a_misspelt_option_is_named_first_at_load(spark: SparkSession) -> None:
    misspelt = spark.read.format("namesrv").option("endpoints", "a:1").option("tabel", "brokers")
    with pytest.raises(AnalysisException) as caught:
        misspelt.load()
    first, *trace, last, _ = [line for line in str(caught.value).splitlines() if line.strip()]
    assert "option 'tabel' is unknown to namesrv: did you mean 'table'" in first
    assert trace.count("Traceback (most recent call last):") == 1
    assert "option 'tabel'" in last


def stream_to(spark: SparkSession, fake: FakeNamesrv, place: Place, checkpoint: Path) -> None:
    """Appends all that there is now."""
    changes = spark.readStream.format("namesrv").options(endpoints=str(fake.endpoint), table="changes", **QUICK).load()
    writer = changes.writeStream.format("namesrv_log").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(place.url).awaitTermination()


def read_of(place: Place) -> list[tuple[int, str, int]]:
    """Batch, op and revision of what was read."""
    with questions(place) as asked:
        found = asked.ask("select batch, op, revision from log where kind = 'reads' and op <> 'kept' order by batch")
    return [(one["batch"], one["op"], one["revision"]) for one in found]


def test_threads_and_spark_go_on_with_one_log_and_an_old_checkpoint_is_refused(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    fake, place = pair[0], Place(str(tmp_path / "log"))
    stream_to(spark, fake, place, tmp_path / "checkpoint")
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()  # as if Spark had died before it noted that it has the batch: it hands it over again
    stream_to(spark, fake, place, tmp_path / "checkpoint")
    assert read_of(place) == [(0, "snapshot", 7)]
    fake.changes, fake.revision = {8: [put("New", queue("broker-a"))], 9: [gone("Other")]}, 8
    stream_to(spark, fake, place, tmp_path / "checkpoint")
    assert read_of(place) == [(0, "snapshot", 7), (1, "changes", 8)]

    fake.revision = 9
    Ingester(ingest_options([fake.endpoint], QUICK), RouteLog(place)).once()
    assert read_of(place)[2:] == [(2, "changes", 9)]

    fake.changes[10], fake.revision = [gone("New")], 10
    with pytest.raises(StreamingQueryException) as caught:
        stream_to(spark, fake, place, tmp_path / "checkpoint")
    assert "another program has written to" in one_line(caught.value)
    assert len(read_of(place)) == 3

    stream_to(spark, fake, place, tmp_path / "new checkpoint")
    assert [op for _, op, _ in read_of(place)] == ["snapshot", "changes", "changes", "snapshot"]
    with questions(place) as asked:
        ended = asked.ask("select topic, end_reason from history where valid_to is not null order by topic")
    assert ended == [
        {"topic": "New", "end_reason": "NOT_IN_SNAPSHOT"},
        {"topic": "Other", "end_reason": "NOT_IN_REGISTRATION"},
    ]


def test_a_stream_that_cannot_be_a_log_is_refused_in_its_first_line(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    source = spark.readStream.format("namesrv").options(endpoints=str(pair[0].endpoint), table="changes", **QUICK)
    for changes, path, problem in (
        (source.load(), None, "option 'path' is missing"),
        (source.schema("namesrv string, epoch string").load(), str(tmp_path / "log"), "the stream has no column"),
    ):
        writer = changes.writeStream.format("namesrv_log").option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises((AnalysisException, StreamingQueryException)) as caught:
            writer.start(path).awaitTermination()
        assert problem in str(caught.value)


def test_the_views_give_the_same_rows_in_spark_and_in_duckdb(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    place = Place(str(tmp_path / "log"))
    log, fake = RouteLog(place), pair[0]
    ingester = Ingester(ingest_options([one.endpoint for one in pair], QUICK), log)
    ingester.once()
    fake.changes, fake.revision = {8: [put("New", queue("broker-a"))], 9: [gone("Other")]}, 9
    ingester.once()
    fake.epoch, fake.revision = "0002", 7
    ingester.once()

    spark.read.option("basePath", place.table).parquet(*log.table.file_uris()).createOrReplaceTempView("log")
    for statement in views_of(place.table, "spark", "").split(";\n"):
        if statement.strip():
            spark.sql(statement)
    with questions(place) as asked:
        for view in ("known", "history"):
            ours = asked.table(f"from {view}")
            theirs = spark.table(view).toArrow().select(ours.column_names)
            assert sorted(map(repr, theirs.to_pylist())) == sorted(map(repr, ours.to_pylist())), view
        (first, *_), last = asked.name_servers(), asked.name_servers()[-1]
        for at in (first["known_from"], last["known_to"]):
            query = f"select * from route_at('Other', timestamp '{at:%Y-%m-%d %H:%M:%S.%f}')"
            theirs = spark.sql(query).toArrow().to_pylist()
            assert sorted(map(repr, theirs)) == sorted(map(repr, asked.route_at("Other", at)))
