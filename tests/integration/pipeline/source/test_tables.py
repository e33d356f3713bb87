"""Reading tables from a real gRPC server, without Spark."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator

import grpc
import pyarrow as pa
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client import namesrv_client
from namesrv_common.client.channels import ResponseLimits
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from route_pipeline import schemas
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.name_server import NamesrvError
from route_pipeline.options import Connecting, ReadRequest, RowFilter
from route_pipeline.snapshot_rows import read_table
from route_pipeline.spark_readers import NamesrvReader
from tests.support.fakes.scripted_namesrv import refuse
from tests.support.fakes.snapshot_name_server import (
    TAKEN_AT_MILLIS,
    Chunk,
    Response,
    Script,
    end_of,
    fleet_chunk,
    header,
    live,
    queue,
    serving,
    snapshot,
    topics_chunk,
)
from tests.support.patience import TIMEOUT
from tests.support.secured.fleet import TOKENS, Place, with_its_broker

QUICK = Connecting(connect_seconds=TIMEOUT, total_seconds=2 * TIMEOUT)
TWO_TOPICS = topics_chunk(TopicTest=[queue("broker-a"), queue("broker-b", 4, 2, 4)], Other=[queue("broker-a")])


def read(script: Script, table: str = schemas.TOPIC_QUEUES, connecting: Connecting = QUICK) -> pa.Table:
    with serving(script) as fake:
        return pa.Table.from_batches(read_table(fake.endpoint, table, connecting), arrow_schema(table))


def failure_of(script: Script, connecting: Connecting = QUICK) -> str:
    with pytest.raises(NamesrvError) as caught:
        read(script, schemas.TOPIC_QUEUES, connecting)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_topic_queues_has_a_row_for_each_topic_and_broker_group_with_its_origin() -> None:
    rows = read(snapshot(TWO_TOPICS)).to_pylist()

    assert [(row["topic"], row["broker_name"], row["read_queue_nums"]) for row in rows] == [
        ("TopicTest", "broker-a", 8),
        ("TopicTest", "broker-b", 4),
        ("Other", "broker-a", 8),
    ]
    origin = {"namesrv": "ns-a", "epoch": "0001", "revision": 7, "taken_at": None}
    numbers = {"read_queue_nums": 4, "write_queue_nums": 2, "perm": 4, "topic_sys_flag": 0}
    names = {"topic": "TopicTest", "cluster_name": "DefaultCluster", "broker_name": "broker-b"}
    absent = {"reported_perm": None, "static_mapping": None}
    assert rows[1] | {"taken_at": None} == origin | names | numbers | absent
    assert rows[0]["taken_at"].timestamp() * 1000 == pytest.approx(TAKEN_AT_MILLIS)


def test_brokers_joins_addresses_live_table_and_filter_servers_of_different_chunks() -> None:
    servers = route_data_pb2.FilterServerData(
        cluster_name="DefaultCluster", broker_addr="10.0.0.1:10911", filter_servers=["10.0.0.1:1234"]
    )
    groups = fleet_chunk(id0="10.0.0.1:10911", id1="10.0.0.2:10911")
    groups.broker_datas[0].unconfirmed_broker_ids.append(1)
    chunks = [Chunk(filter_servers=[servers]), Chunk(live_brokers=[live(0, "10.0.0.1:10911")]), groups]
    row, silent = read(snapshot(*chunks), schemas.BROKERS).to_pylist()

    told = (row["zone_name"], row["filter_servers"], row["data_version_counter"], row["enable_acting_master"])
    assert told == ("zone-1", ["10.0.0.1:1234"], 3, None)
    assert (row["live"], row["unconfirmed"]) == (True, False)
    assert (silent["broker_id"], silent["live"], silent["unconfirmed"]) == (1, False, True)
    assert (silent["generation"], silent["last_update"], silent["filter_servers"]) == (None, None, [])


def test_clusters_has_a_row_for_each_pair_of_cluster_and_group() -> None:
    cluster = route_data_pb2.ClusterData(cluster_name="c1", broker_names=["a", "b"])
    rows = read(snapshot(Chunk(clusters=[cluster])), schemas.CLUSTERS).to_pylist()
    assert [(row["cluster_name"], row["broker_name"]) for row in rows] == [("c1", "a"), ("c1", "b")]


def test_a_filter_leaves_rows_of_other_topics_and_clusters_out() -> None:
    other = queue("broker-b")
    other.cluster_name = "c2"
    chunk = topics_chunk(**{"TopicTest": [queue("broker-a"), other], "Order-1": [queue("broker-a")], "X": [other]})
    with serving(snapshot(chunk)) as fake:

        def rows(wanted: RowFilter) -> list[tuple[str, str]]:
            batches = read_table(fake.endpoint, schemas.TOPIC_QUEUES, QUICK, wanted=wanted)
            return [(row["topic"], row["cluster_name"]) for batch in batches for row in batch.to_pylist()]

        assert rows(RowFilter.of(("TopicTest", "Ord*"), ("DefaultCluster",))) == [
            ("TopicTest", "DefaultCluster"),
            ("Order-1", "DefaultCluster"),
        ]
        assert rows(RowFilter.of((), ("c2",))) == [("TopicTest", "c2"), ("X", "c2")]


@pytest.mark.parametrize(
    ("table", "asked"),
    [
        (schemas.TOPIC_QUEUES, {pb.ROUTE_TABLE_TOPIC_QUEUES}),
        (schemas.CLUSTERS, {pb.ROUTE_TABLE_CLUSTERS}),
        (schemas.BROKERS, {pb.ROUTE_TABLE_BROKER_GROUPS, pb.ROUTE_TABLE_FILTER_SERVERS, pb.ROUTE_TABLE_LIVE_BROKERS}),
    ],
)
def test_every_batch_has_the_declared_schema_and_only_its_tables_are_asked_for(table: str, asked: set[int]) -> None:
    with serving(snapshot(fleet_chunk(id0="10.0.0.1:10911"), TWO_TOPICS)) as fake:
        for batch in read_table(fake.endpoint, table, QUICK):
            assert batch.schema.equals(arrow_schema(table))
            batch.validate(full=True)
        (request,) = fake.snapshot_requests
    assert set(request.tables) == asked


SNAPSHOT_GONE = RichError(grpc.StatusCode.NOT_FOUND, "no pin pin-1", reason="SNAPSHOT_GONE", domain="namesrv.dev")


def not_connected(words: str) -> RichError:
    """What gRPC says of a connection that failed. It must not try again, as it would if there was none."""
    text = f"failed to connect to all addresses; {words}"
    return RichError(grpc.StatusCode.UNAVAILABLE, text, retry_after_seconds=-1)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (SNAPSHOT_GONE, r"SNAPSHOT_GONE: no pin pin-1; .*pinSeconds.*: call load\(\) again, and cache\(\)"),
        (
            not_connected("WRONG_VERSION_NUMBER"),
            "speaks no TLS: leave the option 'tls' out, or give the server tls_cert$",
        ),
        (not_connected("Hostname Verification Check failed"), "call it by one of them in the option 'endpoints'$"),
        (
            not_connected("TSI_DATA_CORRUPTED"),
            "look at the options 'tlsCertFile' and 'tlsKeyFile', and at the server's",
        ),
        (not_connected("Socket closed"), "if it speaks TLS, set the option 'tls' to 'true'$"),
        (not_connected("Failed parsing HTTP/2"), "look at the port in the option 'endpoints'$"),
    ],
)
def test_a_read_that_is_refused_tells_which_option_to_look_at(refusal: RichError, told: str) -> None:
    with serving(snapshot()) as fake:
        fake.refusal = refusal
        with pytest.raises(NamesrvError, match=told):
            list(read_table(fake.endpoint, schemas.TOPIC_QUEUES, QUICK, "pin-1"))


def test_all_reads_of_a_process_share_one_connection() -> None:
    peers: set[str] = set()

    def noting(context: grpc.ServicerContext) -> Iterable[Response]:
        peers.add(context.peer())
        return [header(), end_of([])]

    with serving(noting) as fake:
        for _ in range(3):
            list(read_table(fake.endpoint, schemas.TOPIC_QUEUES, QUICK))
    assert len(peers) == 1


@pytest.mark.parametrize(
    ("responses", "problem"),
    [
        ([header(), Response(chunk=TWO_TOPICS)], "before its end marker"),
        ([Response(chunk=TWO_TOPICS), end_of([TWO_TOPICS])], "without a header"),
        ([], "before its header"),
        ([header(namesrv=""), end_of([])], "does not say its name"),
        (
            [header(), Response(header=header(revision=8).header, chunk=TWO_TOPICS)],
            "revision 7 to ns-a, epoch 0001, revision 8",
        ),
        ([header(), Response()], "unknown kind"),
        ([header(), Response(chunk=TWO_TOPICS), end_of([])], "with topic_count 2, but its end says 0"),
    ],
)
def test_a_stream_that_breaks_the_contract_is_an_error_and_no_shorter_table(
    responses: list[Response], problem: str
) -> None:
    assert problem in failure_of(lambda _: responses)


def test_an_error_in_the_middle_names_endpoint_code_and_reason_and_is_not_retried() -> None:
    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header()
        yield Response(chunk=TWO_TOPICS)
        error = RichError(grpc.StatusCode.UNAVAILABLE, "going\ndown", reason="SHUTTING_DOWN", domain="namesrv.dev")
        refuse(context, error)

    with serving(broken) as fake:
        with pytest.raises(NamesrvError) as caught:
            list(read_table(fake.endpoint, schemas.TOPIC_QUEUES, QUICK))
        assert str(caught.value) == f"name server {fake.endpoint}: UNAVAILABLE SHUTTING_DOWN: going down"
        assert len(fake.snapshot_requests) == 1


def test_only_unavailable_before_the_first_message_is_retried() -> None:
    attempts: list[int] = []

    def starting(context: grpc.ServicerContext) -> Iterable[Response]:
        attempts.append(1)
        if len(attempts) < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        if len(attempts) > 3:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
        return [header(), Response(chunk=TWO_TOPICS), end_of([TWO_TOPICS])]

    assert read(starting).num_rows == 3
    assert len(attempts) == 3
    assert "UNIMPLEMENTED: no such call" in failure_of(starting)
    assert len(attempts) == 4


def test_a_name_server_that_says_nothing_more_is_given_up_at_the_total_timeout() -> None:
    released = threading.Event()

    def stalled(_context: grpc.ServicerContext) -> Iterator[Response]:
        yield header()
        released.wait(TIMEOUT)

    with serving(stalled) as fake:
        try:
            with pytest.raises(NamesrvError, match=r"DEADLINE_EXCEEDED.*longer than 0\.3 s"):
                list(read_table(fake.endpoint, schemas.TOPIC_QUEUES, Connecting(connect_seconds=2, total_seconds=0.3)))
        finally:
            released.set()


def test_a_server_that_does_not_even_greet_is_given_up_at_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NamesrvError, match="UNAVAILABLE"):
        list(read_table(Endpoint(*silent.getsockname()), schemas.TOPIC_QUEUES, Connecting(1, total_seconds=20)))


def endless(context: grpc.ServicerContext) -> Iterator[Response]:
    yield header()
    while context.is_active():
        yield Response(chunk=TWO_TOPICS)


def test_a_reader_that_stops_early_cancels_the_call() -> None:
    cancelled = threading.Event()

    def noting(context: grpc.ServicerContext) -> Iterator[Response]:
        context.add_callback(cancelled.set)
        return endless(context)

    with serving(noting) as fake:
        batches = read_table(fake.endpoint, schemas.TOPIC_QUEUES, QUICK)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert cancelled.wait(timeout=TIMEOUT)


def test_a_snapshot_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namesrv_client, "STREAM_LIMITS", ResponseLimits(bytes=1 << 20, rows=100))
    assert "sends too much: StreamRouteSnapshot has 102 rows so far, over the limit of 100" in failure_of(endless)


def rows_over_tls(endpoint: Endpoint, options: dict[str, str]) -> int:
    """How many rows the table of topics has: a plan is made, and each of its parts is read."""
    reader = NamesrvReader(ReadRequest.of({"endpoints": str(endpoint), "tls": "true"} | options))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_routes_are_read_over_tls_with_a_token_a_file_of_one_or_a_certificate(place: Place) -> None:
    trusted, shown = {"tlsCaFile": str(place.authority.path)}, place.callers["client"]
    with with_its_broker(place, "token") as (server, _):
        for options in ({"token": TOKENS["client"]}, {"tokenFile": str(place.tokens["client"])}):
            assert rows_over_tls(server.endpoint, trusted | options) == 1
        no_token = r"UNAUTHENTICATED NOT_AUTHENTICATED: .*look at the option 'tokenFile' \(or 'token'\), or .*$"
        for options, problem in (
            (trusted, no_token),
            (trusted | {"token": "not-the-token"}, no_token),
            ({"token": "x"}, "is of an authority that the option 'tlsCaFile' does not have$"),
        ):
            with pytest.raises(NamesrvError, match=f"^name server {server.endpoint}: .*{problem}") as caught:
                rows_over_tls(server.endpoint, options)
            assert "not-the-token" not in str(caught.value)
    with with_its_broker(place, "mTLS") as (server, _):
        pair = {"tlsCertFile": str(shown.certificate), "tlsKeyFile": str(shown.key)}
        assert rows_over_tls(server.endpoint, trusted | pair) == 1
