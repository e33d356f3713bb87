"""The pipeline with a real Spark: the data source and failures against fakes, one history against real name servers."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pyarrow.dataset as ds
import pytest
from namesrv_api.v1 import registration_service_pb2
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from route_pipeline import schemas
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.log.compaction import compact
from route_pipeline.log.history import history
from route_pipeline.log.ingest import Ingester, IngestError, IngestResult, ingest
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.commits import QUARANTINE
from route_pipeline.log.protocol.route_log import RouteLog, files
from route_pipeline.log.retention import drop_old
from route_pipeline.queries import (
    INGEST_TIME,
    WALL_TIME,
    clock_leads,
    divergence,
    divergence_causes,
    events_of,
    latest_state,
    route_at,
)
from route_pipeline.tables import print_causes, print_report
from tests.support.fakes.snapshot_name_server import (
    FakeNamesrv,
    Response,
    fleet_chunk,
    gone,
    header,
    put,
    queue,
    serving,
    snapshot,
    topics_chunk,
)
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration
from tests.support.spark_session import spark

pytestmark = pytest.mark.spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

TOPICS = topics_chunk(TopicTest=[queue("broker-a")], Other=[queue("broker-a", 4, 2)])
CHUNKS = (fleet_chunk(id0="10.0.0.1:10911", id1="10.0.0.2:10911"), TOPICS)
QUICK = {"connectTimeoutSeconds": "1", "timeoutSeconds": "30"}
A, B = "127.0.0.1:10911", "127.0.0.1:20911"
NOT_YET = datetime.max.replace(tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> RouteLog:
    return RouteLog.create(tmp_path / "route tables")


@pytest.fixture
def pair(spark: SparkSession) -> Iterator[tuple[FakeNamesrv, FakeNamesrv]]:
    """Two name servers with the same tables. They start after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with (
        serving(snapshot(*CHUNKS)) as first,
        serving(snapshot(*CHUNKS, namesrv="ns-b"), namesrv="ns-b") as second,
    ):
        yield first, second


def endpoints_of(pair: tuple[FakeNamesrv, FakeNamesrv]) -> list[Endpoint]:
    return [fake.endpoint for fake in pair]


def log_files(store: RouteLog) -> list[str]:
    return files(store.url)


def test_the_schema_that_spark_sees_is_the_declared_one(
    spark: SparkSession, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    for table in schemas.TABLES:
        loaded = spark.read.format("namesrv").options(endpoints=str(pair[0].endpoint), table=table).load()
        assert loaded.schema.names == arrow_schema(table).names
        assert loaded.count() > 0, table
    brokers = spark.read.format("namesrv").options(endpoints=str(pair[0].endpoint), table="brokers").load()
    assert brokers.schema["broker_id"].metadata == {"comment": "0 is the master, above 0 a slave"}
    assert not brokers.schema["broker_id"].nullable


def test_two_actions_on_the_rows_of_all_name_servers_read_one_pinned_revision(
    spark: SparkSession, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
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
    # With a schema Spark makes the source only when it plans.
    for read in (misspelt.load, lambda: misspelt.schema("topic string").load().collect()):
        with pytest.raises(AnalysisException) as caught:
            read()
        first, *_, last, _ = [line for line in str(caught.value).splitlines() if line.strip()]
        assert "option 'tabel' is unknown to namesrv: did you mean 'table'" in first
        assert "option 'tabel'" in last


def test_a_schema_that_only_prunes_is_read(spark: SparkSession, pair: tuple[FakeNamesrv, FakeNamesrv]) -> None:
    source = spark.read.format("namesrv").option("endpoints", str(pair[0].endpoint))
    pruned = source.schema("perm int, topic string").load()
    assert sorted(map(tuple, pruned.collect())) == [(6, "Other"), (6, "TopicTest")]
    assert pruned.select("topic").distinct().count() == 2
    with pytest.raises(AnalysisException, match="the schema has perm as bigint, but in table topic_queues it is int"):
        source.schema("perm bigint").load().collect()


def test_rows_of_a_batch_are_ingested_after_they_were_taken(spark: SparkSession, store: RouteLog) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client:
        for counter in (1, 2):
            register(client, A, "TopicTest", f"Other{counter}", counter=counter)
            ingest(spark, [namesrv.endpoint], store, QUICK)
    (lead,) = clock_leads(read_changes(spark, store)).collect()
    assert lead["lead_seconds"] <= 0
    rows = ds.dataset(log_files(store)).to_table(columns=["changed_at", "ingested_at"]).to_pylist()
    assert all(row["changed_at"] <= row["ingested_at"] for row in rows)


def test_nobody_answering_fails_the_ingest_in_one_line_and_nothing_is_left(
    spark: SparkSession, store: RouteLog
) -> None:
    with pytest.raises(IngestError) as caught:
        ingest(spark, [Endpoint("127.0.0.1", 1)], store, QUICK)

    assert str(caught.value).startswith("no name server answers: name server 127.0.0.1:1: UNAVAILABLE")
    assert "\n" not in str(caught.value)
    assert log_files(store) == []


def test_a_cold_name_server_fails_reads_and_ingests_in_one_line_and_is_waited_for_by_follow(
    spark: SparkSession, store: RouteLog, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    pair[1].warm = False
    problem = f"name server ns-b at {pair[1].endpoint} is warming up, so brokers and topics may be missing: "
    with pytest.raises(IngestError) as caught:
        ingest(spark, endpoints_of(pair), store, QUICK)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
    assert log_files(store) == []
    loaded = spark.read.format("namesrv").option("endpoints", str(pair[1].endpoint)).load()
    with pytest.raises(AnalysisException, match=problem):
        loaded.count()

    waited: list[str] = []
    following = Ingester(
        spark,
        endpoints_of(pair),
        store,
        QUICK,
        on_wait=lambda _endpoint, namesrv: waited.append(namesrv),
        follows=True,
    )
    rounds = [[summary.namesrv for summary in following.once().summaries] for _ in range(2)]
    pair[1].warm = True
    rounds.append([summary.namesrv for summary in following.once().summaries])
    assert (rounds, waited) == ([["ns-a"], [], ["ns-b"]], ["ns-b"])
    reads = read_changes(spark, store).where("table_name = 'reads'").select("namesrv", "op", "warm").collect()
    assert sorted(map(tuple, reads)) == [("ns-a", "snapshot", True), ("ns-b", "snapshot", True)]


def test_a_snapshot_that_breaks_off_fails_its_batch_which_the_next_ingest_reads_again(
    spark: SparkSession, store: RouteLog, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    whole = pair[1].script

    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header("ns-b")
        yield Response(chunk=TOPICS)
        context.abort(grpc.StatusCode.INTERNAL, "killed")

    pair[1].script = broken
    with pytest.raises(IngestError, match=r"name server .*: INTERNAL: killed"):
        ingest(spark, endpoints_of(pair), store, QUICK)
    assert log_files(store) == []

    pair[1].script = whole
    result = ingest(spark, endpoints_of(pair), store, QUICK)
    assert [(summary.namesrv, summary.batch_id, summary.read) for summary in result.summaries] == [
        ("ns-a", 0, "snapshot"),
        ("ns-b", 0, "snapshot"),
    ]


def test_rows_that_break_the_contract_are_put_aside_with_the_reason(spark: SparkSession, store: RouteLog) -> None:
    odd = topics_chunk(TopicTest=[queue("broker-a", perm=9)], Fine=[queue("broker-a")])
    with serving(snapshot(odd)) as fake:
        result = ingest(spark, [fake.endpoint], store, QUICK)

    assert (result.rows, result.quarantined) == (2, 1)
    (row,) = ds.dataset(files(store.url, QUARANTINE)).to_table().to_pylist()
    assert (row["topic"], row["perm"], row["problem"]) == ("TopicTest", 9, "perm is not 0 to 7")
    assert read_changes(spark, store).count() == 2


def test_compacted_changes_are_a_gap_with_a_name_and_deletions_are_inferred_from_the_snapshot(
    spark: SparkSession, store: RouteLog, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    fake, _ = pair
    ingest(spark, [fake.endpoint], store, QUICK)
    fake.changes = {8: [put("Short", queue("broker-a"))], 9: [gone("Short")], 10: [gone("Other")]}
    fake.revision, fake.compacted_revision = 10, 9
    fake.script = snapshot(fleet_chunk(id0="10.0.0.1:10911"), topics_chunk(TopicTest=[queue("broker-a")]), revision=10)
    with pytest.raises(IngestError, match="Set the option onCompacted=resync"):
        ingest(spark, [fake.endpoint], store, QUICK)

    result = ingest(spark, [fake.endpoint], store, QUICK | {"onCompacted": "resync"})

    (summary,) = result.summaries
    assert summary.gap == "single changes after revision 7 of epoch 0001 up to 10, which the snapshot sums up"
    versions = history(read_changes(spark, store)).where("table_name = 'topic_queues'").collect()
    assert sorted((row["topic"], row["valid_to_revision"], row["end_reason"]) for row in versions) == [
        ("Other", 10, "NOT_IN_SNAPSHOT"),
        ("TopicTest", None, None),
    ]


@dataclass
class Life:
    """A short life of two name servers, ingested step by step."""

    store: RouteLog
    results: list[IngestResult] = field(default_factory=list)
    before_loss: datetime = NOT_YET
    after_loss: datetime = NOT_YET


def register(client: Client, addr: str, *topics: str, counter: int = 1) -> None:
    broker = identity(addr, name=f"broker-{addr.rpartition(':')[2]}")
    client.registration.RegisterBroker(registration(topics, broker, counter), timeout=10)


def unregister(client: Client, addr: str) -> None:
    broker = identity(addr, name=f"broker-{addr.rpartition(':')[2]}")
    request = registration_service_pb2.UnregisterBrokerRequest(broker=broker)
    assert client.registration.UnregisterBroker(request, timeout=10).removed


def moment() -> datetime:
    """A time after all that has happened and before all that will: name servers tell theirs in whole milliseconds."""
    now = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC) - now > timedelta(milliseconds=1))
    return now


@pytest.fixture(scope="module")
def life(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Both know two brokers; a loses one and gets it back; b is restarted without it; then b is killed."""
    told = Life(RouteLog.create(tmp_path_factory.mktemp("life")))
    quiet = ("--scan-not-active-broker-interval-millis", "0")
    with ExitStack() as stack:
        first = stack.enter_context(NamesrvProcess("--name", "ns-a", *quiet))
        second = stack.enter_context(NamesrvProcess("--name", "ns-b", *quiet))
        a, b = (stack.enter_context(process.connect()) for process in (first, second))

        def take() -> None:
            told.results.append(ingest(spark, [first.endpoint, second.endpoint], told.store, QUICK))

        for client in (a, b):
            register(client, A, "TopicTest", "Other")
            register(client, B, "TopicTest")
        told.before_loss = moment()
        take()
        unregister(a, A)
        told.after_loss = moment()
        register(a, A, "TopicTest", "Other", counter=2)
        take()
        second.kill()
        again = stack.enter_context(NamesrvProcess("--name", "ns-b", *quiet, port=second.endpoint.port))
        with again.connect() as b:
            register(b, B, "TopicTest")
            take()
        again.kill()
        take()
        take()
    return told


@pytest.fixture(scope="module")
def versions(spark: SparkSession, life: Life) -> DataFrame:
    """The history of it, computed once."""
    return history(read_changes(spark, life.store)).cache()


def test_each_batch_says_what_it_brought_and_what_is_missing(life: Life) -> None:
    read = [(summary.namesrv, summary.read) for result in life.results for summary in result.summaries]
    assert read == [
        ("ns-a", "snapshot"),
        ("ns-b", "snapshot"),
        ("ns-a", "changes"),
        ("ns-b", "snapshot"),
        ("ns-b", "lost"),
    ]
    ((namesrv, gap),) = [(one.namesrv, one.gap) for result in life.results for one in result.summaries if one.gap]
    assert namesrv == "ns-b"
    assert gap.startswith("what happened after revision 2 of epoch ")
    told = [summary for commit in life.store.commits_after(0, 100) for summary in commit.summaries]
    assert told == [summary for result in life.results for summary in result.summaries]
    assert not any(result.quarantined for result in life.results)


def test_the_log_is_the_same_for_spark_and_for_arrow_and_has_each_row_once(spark: SparkSession, life: Life) -> None:
    key = ["namesrv", "epoch", "revision", "table_name", "key", "op", "from_snapshot"]
    by_spark = sorted(tuple(row) for row in read_changes(spark, life.store).select(*key).collect())
    arrow = ds.dataset(files(life.store.url)).to_table(columns=key)
    assert sorted(tuple(row.values()) for row in arrow.to_pylist()) == by_spark
    assert len(set(by_spark)) == len(by_spark)


def test_the_history_has_each_version_with_the_reason_of_its_end(versions: DataFrame) -> None:
    told = sorted(
        (row["namesrv"], row["broker_name"], row["valid_from_revision"], row["valid_to_revision"], row["end_reason"])
        for row in versions.where("topic = 'TopicTest'").collect()
    )
    assert told == [
        ("ns-a", "broker-10911", 2, 3, "GROUP_GONE"),
        ("ns-a", "broker-10911", 4, None, None),
        ("ns-a", "broker-20911", 2, None, None),
        ("ns-b", "broker-10911", 2, 1, "NOT_IN_SNAPSHOT"),
        ("ns-b", "broker-20911", 2, None, None),
    ]


def test_a_topic_can_be_asked_for_its_past(life: Life, versions: DataFrame) -> None:
    before = [(route.namesrv, route.broker_addrs) for route in route_at(versions, "Other", life.before_loss)]
    assert before == [], "nothing was known before the first snapshot"
    after = [(route.namesrv, route.broker_addrs) for route in route_at(versions, "TopicTest", life.after_loss)]
    assert after == [("ns-a", {0: B}), ("ns-b", {0: A}), ("ns-b", {0: B})]
    events = [(event.namesrv, event.table_name, event.end_reason) for event in events_of(versions, "Other")]
    assert sorted(events, key=str) == [
        ("ns-a", "broker_groups", "UNREGISTERED"),
        ("ns-a", "broker_groups", None),
        ("ns-a", "brokers", "UNREGISTERED"),
        ("ns-a", "brokers", None),
        ("ns-a", "topic_queues", "GROUP_GONE"),
        ("ns-a", "topic_queues", None),
        ("ns-b", "broker_groups", "NOT_IN_SNAPSHOT"),
        ("ns-b", "brokers", "NOT_IN_SNAPSHOT"),
        ("ns-b", "topic_queues", "NOT_IN_SNAPSHOT"),
    ]


def test_disagreements_have_a_beginning_and_an_end_by_either_clock(
    spark: SparkSession, life: Life, versions: DataFrame
) -> None:
    changes = read_changes(spark, life.store)
    wall = divergence(changes, versions, WALL_TIME).where("key = 'Other/DefaultCluster/broker-10911'")
    told = [(row["present"], row["until"] is None) for row in wall.orderBy("since").collect()]
    assert told == [
        ({"ns-a": False, "ns-b": True}, False),  # while a had lost the broker
        ({"ns-a": True, "ns-b": False}, True),  # since b was restarted
    ]
    ingested = divergence(changes, versions, INGEST_TIME).where("key = 'Other/DefaultCluster/broker-10911'").collect()
    assert [row["present"] for row in ingested] == [{"ns-a": True, "ns-b": False}], "one ingest saw loss and return"
    assert {row["namesrv"] for row in clock_leads(changes).collect()} == {"ns-a", "ns-b"}


def test_disagreements_are_summed_up_by_broker_and_by_what_began_them(
    spark: SparkSession, life: Life, versions: DataFrame
) -> None:
    changes = read_changes(spark, life.store)
    by_wall = divergence_causes(changes, versions, divergence(changes, versions, WALL_TIME), WALL_TIME)
    told = {(one.broker, one.cause, one.count, one.lasting) for one in by_wall}
    assert told == {
        ("broker-10911", "NOT_IN_SNAPSHOT: ns-b", 3, 3),
        ("broker-10911", "GROUP_GONE: ns-a", 2, 0),
        ("broker-10911", "UNREGISTERED: ns-a", 2, 1),
    }
    out = io.StringIO()
    print_causes(Console(file=out, width=200, markup=False, highlight=False), {WALL_TIME: by_wall}, 1)
    assert "disagreements by the clocks of the name servers, by broker and cause" in out.getvalue()


def test_disagreements_with_a_name_server_that_is_not_read_say_so(
    spark: SparkSession, store: RouteLog, pair: tuple[FakeNamesrv, FakeNamesrv]
) -> None:
    ingest(spark, endpoints_of(pair), store, QUICK)
    pair[0].changes, pair[0].revision = {8: [put("New", queue("broker-a")), gone("Other")]}, 8
    pair[1].refusal = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "too late", reason="X", domain="namesrv.dev")
    ingest(spark, endpoints_of(pair), store, QUICK)
    changes = read_changes(spark, store)
    versions = history(changes)
    by_ingest = divergence_causes(changes, versions, divergence(changes, versions, INGEST_TIME), INGEST_TIME)
    told = [(one.cluster_name, one.broker, one.cause, one.count, one.lasting) for one in by_ingest]
    assert told == [("DefaultCluster", "broker-a", "NOT_READ: ns-b", 2, 2)]


def test_the_report_names_the_lost_name_server_and_the_open_disagreements(
    spark: SparkSession, life: Life, versions: DataFrame
) -> None:
    latest = latest_state(life.store.state(), read_changes(spark, life.store), versions)

    assert [(one.namesrv, one.lost, one.topics, one.queue_rows, one.brokers) for one in latest.namesrvs] == [
        ("ns-a", False, 2, 3, 2),
        ("ns-b", True, 1, 1, 1),
    ]
    assert latest.open_disagreements == 4
    tables_of = Counter(one.table_name for one in latest.disagreements)
    assert tables_of == {"topic_queues": 2, "broker_groups": 1, "brokers": 1}
    out = io.StringIO()
    print_report(latest, Console(file=out, width=200, markup=False, highlight=False))
    assert "Disagreements: 4" in out.getvalue()
    assert "(lost)" in out.getvalue()


def test_compaction_changes_nothing_but_files_and_retention_only_what_is_over(spark: SparkSession, life: Life) -> None:
    def told() -> set[tuple[object, ...]]:
        columns = ("namesrv", "table_name", "key", "valid_from_revision", "valid_from", "valid_to_revision")
        rows = history(read_changes(spark, life.store)).select(*columns, "end_reason").collect()
        return {tuple(row) for row in rows}

    before = told()
    done = compact(life.store)
    assert (len(files(life.store.url)), done.deleted) == (1, 0)
    assert told() == before

    in_three_days = datetime.now(UTC).date() + timedelta(days=3)
    assert len(drop_old(spark, life.store, in_three_days, keep_days=1)) == 1
    assert drop_old(spark, life.store, in_three_days, keep_days=1) == ()
    assert told() == {version for version in before if version[-1] is None}
