"""The pipeline with a real Spark against two fake name servers over real gRPC."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from groundwork.endpoints import Endpoint
from route_pipeline import schemas
from route_pipeline.comparison import MAX_SHOWN_DIFFERENCES, compare_latest
from route_pipeline.ingest import IngestError, ingest
from route_pipeline.report import print_report
from route_pipeline.snapshot_reader import Timeouts
from route_pipeline.store import RouteStore
from tests.integration.spark_session import spark
from tests.unit.route_pipeline.fake_namesrv import (
    Chunk,
    FakeNamesrv,
    Response,
    fleet_chunk,
    header,
    live,
    queue,
    serving,
    snapshot,
    topics_chunk,
)

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

FLEET = (
    fleet_chunk(id0="10.0.0.1:10911", id1="10.0.0.2:10911"),
    Chunk(live_brokers=[live(0, "10.0.0.1:10911"), live(1, "10.0.0.2:10911")]),
)
TOPICS = topics_chunk(TopicTest=[queue("broker-a")], Other=[queue("broker-a", 4, 2)])
QUICK = Timeouts(connect=2, total=30)


@pytest.fixture
def store(tmp_path: Path) -> RouteStore:
    return RouteStore.create(tmp_path / "route tables")


@pytest.fixture
def pair(spark: SparkSession) -> Iterator[tuple[FakeNamesrv, FakeNamesrv]]:
    """Two name servers with the same tables. They start after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with serving(snapshot(*FLEET, TOPICS)) as first, serving(snapshot(*FLEET, TOPICS, namesrv="ns-b")) as second:
        yield first, second


def report_of(spark: SparkSession, store: RouteStore) -> str:
    out = io.StringIO()
    print_report(compare_latest(spark, store), Console(file=out, width=200, markup=False, highlight=False))
    return out.getvalue()


def files_of(store: RouteStore) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file() and path.name != "route_pipeline.json"]


def test_the_schema_that_spark_sees_is_the_declared_one(
    spark: SparkSession, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    for table in schemas.TABLES:
        loaded = spark.read.format("namesrv").option("endpoints", str(pair[0].endpoint)).option("table", table).load()
        assert loaded.schema.names == schemas.arrow_schema(table).names
        assert loaded.count() > 0
    brokers = spark.read.format("namesrv").options(endpoints=str(pair[0].endpoint), table="brokers").load()
    assert brokers.schema["broker_id"].metadata == {"comment": "0 is the master, above 0 a slave"}
    assert not brokers.schema["broker_id"].nullable


def test_the_default_table_holds_the_rows_of_all_name_servers(
    spark: SparkSession, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    endpoints = ";".join(str(fake.endpoint) for fake in pair)

    rows = spark.read.format("namesrv").option("ENDPOINTS", endpoints).load().orderBy("namesrv", "topic").collect()

    assert [(row.namesrv, row.topic, row.write_queue_nums) for row in rows] == [
        ("ns-a", "Other", 2),
        ("ns-a", "TopicTest", 8),
        ("ns-b", "Other", 2),
        ("ns-b", "TopicTest", 8),
    ]


def test_a_misspelt_option_is_named_at_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="option 'tabel' is unknown"):
        spark.read.format("namesrv").option("endpoints", "a:1").option("tabel", "brokers").load()


def test_an_ingest_of_equal_name_servers_reads_each_once_and_reports_no_differences(
    spark: SparkSession, store: RouteStore, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    result = ingest(spark, [fake.endpoint for fake in pair], store, QUICK)

    assert result.rows == {"topic_queues": 4, "brokers": 4, "clusters": 2}
    assert result.namesrvs == ("ns-a", "ns-b")
    assert [fake.calls for fake in pair] == [1, 1], "one stream for all tables: they are of one revision"
    assert "No differences between the 2 name servers." in report_of(spark, store)
    topics = pq.read_table(store.table_folder("topic_queues", result.ingest_id))
    assert topics.schema.names == schemas.arrow_schema("topic_queues").names
    assert sorted(topics.column("topic").to_pylist()) == ["Other", "Other", "TopicTest", "TopicTest"]


def test_the_report_of_differing_name_servers_names_every_difference(spark: SparkSession, store: RouteStore) -> None:
    other = (
        fleet_chunk(id0="10.0.0.1:10911"),
        Chunk(live_brokers=[live(0, "10.0.0.1:10911", counter=4)]),
        topics_chunk(TopicTest=[queue("broker-a", perm=4)]),
    )
    with serving(snapshot(*FLEET, TOPICS)) as first, serving(snapshot(*other, namesrv="ns-b")) as second:
        ingest(spark, [first.endpoint, second.endpoint], store, QUICK)
    comparison = compare_latest(spark, store)

    found = {differences.table: differences for differences in comparison.differences}
    assert {table: differences.count for table, differences in found.items()} == {"topic_queues": 2, "brokers": 2}
    only_on_a, changed = found["topic_queues"].shown
    assert (only_on_a.key["topic"], list(only_on_a.values)) == ("Other", ["ns-a"])
    assert {name: values["perm"] for name, values in changed.values.items()} == {"ns-a": 6, "ns-b": 4}
    assert [summary.topics for summary in comparison.namesrvs] == [2, 1]
    text = report_of(spark, store)
    assert "data_version_counter=4" in text
    assert "The name servers differ: topic_queues 2, brokers 2." in text


def test_a_name_server_that_lost_everything_is_reported_and_not_passed_over(
    spark: SparkSession, store: RouteStore, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    many = topics_chunk(**{f"Topic{number:03}": [queue("broker-a")] for number in range(MAX_SHOWN_DIFFERENCES + 5)})
    with serving(snapshot(namesrv="ns-empty")) as empty, serving(snapshot(many)) as full:
        ingest(spark, [empty.endpoint, full.endpoint], store, QUICK)
    comparison = compare_latest(spark, store)

    empty_summary = next(summary for summary in comparison.namesrvs if summary.namesrv == "ns-empty")
    assert (empty_summary.topics, empty_summary.queue_rows, empty_summary.brokers) == (0, 0, 0)
    (differences,) = comparison.differences
    assert (differences.count, len(differences.shown)) == (MAX_SHOWN_DIFFERENCES + 5, MAX_SHOWN_DIFFERENCES)


def test_a_name_server_that_cannot_be_reached_fails_the_ingest_in_one_line_and_nothing_is_left(
    spark: SparkSession, store: RouteStore, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    with pytest.raises(IngestError) as caught:
        ingest(spark, [pair[0].endpoint, Endpoint("127.0.0.1", 1)], store, QUICK)

    assert str(caught.value).startswith("name server 127.0.0.1:1: UNAVAILABLE")
    assert "\n" not in str(caught.value)
    assert files_of(store) == []


def test_a_snapshot_that_breaks_off_fails_the_ingest_and_the_ingest_before_stays_the_latest(
    spark: SparkSession, store: RouteStore, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header("ns-c")
        yield Response(chunk=TOPICS)
        context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    before = ingest(spark, [fake.endpoint for fake in pair], store, QUICK)
    files = files_of(store)
    with serving(broken) as third, pytest.raises(IngestError, match="UNAVAILABLE: killed"):
        ingest(spark, [pair[0].endpoint, third.endpoint], store, QUICK)

    assert store.latest_ingest_id() == before.ingest_id
    assert files_of(store) == files


def test_one_name_server_under_two_addresses_is_refused(
    spark: SparkSession, store: RouteStore, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    endpoint = pair[0].endpoint
    with pytest.raises(IngestError, match="both call themselves 'ns-a'"):
        ingest(spark, [endpoint, Endpoint("localhost", endpoint.port)], store, QUICK)
    assert files_of(store) == []
