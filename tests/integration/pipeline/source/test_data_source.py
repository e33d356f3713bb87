"""The data source's objects, called as Spark calls them, without Spark: plans and rows of batches and of streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from route_pipeline import name_server, schemas
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.name_server import ColdError, NamesrvError, Span
from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.planner import Planner
from route_pipeline.positions import HOLE, INITIAL, Position, from_json, to_json
from route_pipeline.quality import problems_of
from route_pipeline.spark_readers import NamesrvReader, NamesrvStreamReader
from tests.support.fakes.snapshot_name_server import FakeNamesrv, gone, put, queue, serving, snapshot, topics_chunk


def data_source(**options: str) -> NamesrvDataSource:
    return NamesrvDataSource(CaseInsensitiveDict(options))


def test_a_plan_pins_each_name_server_and_reads_it_by_one_task() -> None:
    with serving(snapshot()) as first, serving(snapshot(), namesrv="ns-b") as second:
        endpoints = f"{first.endpoint}; {second.endpoint}"
        parts = data_source(endpoints=endpoints, pinSeconds="60").reader(StructType()).partitions()
        assert (first.pins, second.pins) == ([60_000], [60_000])
    assert [part.value for part in parts] == [SnapshotPart(fake.endpoint, "pin-1") for fake in (first, second)]


def test_a_plan_waits_while_all_snapshots_are_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(snapshot()) as fake:
        reader = data_source(endpoints=str(fake.endpoint)).reader(StructType())
        fake.full = 2
        assert [part.value for part in reader.partitions()] == [SnapshotPart(fake.endpoint, "pin-1")]
        fake.full = 1
        monkeypatch.setattr(name_server, "PIN_WAIT_SECONDS", 0.1)
        with pytest.raises(NamesrvError, match=r"LIMIT_EXCEEDED: pins: 13; start fewer reads at once$"):
            reader.partitions()


def test_two_name_servers_of_one_name_are_refused() -> None:
    with serving(snapshot()) as first, serving(snapshot()) as second:
        reader = data_source(endpoints=f"{first.endpoint},{second.endpoint}").reader(StructType())
        with pytest.raises(NamesrvError, match="both call themselves 'ns-a'"):
            reader.partitions()


def test_the_table_of_changes_is_read_from_the_oldest_one_that_is_left() -> None:
    with serving(snapshot()) as fake:
        fake.compacted_revision = 5
        fake.changes = {5: [put("Old", queue("broker-a"))], 6: [put("New", queue("broker-a"))], 7: [gone("New")]}
        reader = data_source(endpoints=str(fake.endpoint), table="changes").reader(StructType())
        (part,) = reader.partitions()
        rows = pa.Table.from_batches(reader.read(part)).to_pylist()
    assert [(row["revision"], row["op"], row["topic"], row["reason"]) for row in rows] == [
        (6, "put", "New", None),
        (7, "remove", "New", "NOT_IN_REGISTRATION"),
        (7, "changes", None, None),
    ]


TLS = {"endpoints": "a:1", "tls": "true"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'endpoints' is missing"),
        ({"endpoints": "a:1", "tabel": "brokers"}, "option 'tabel' is unknown to namesrv: did you mean 'table'?"),
        ({"endpoints": "a:1", "table": "broker"}, "option 'table' is 'broker': .*'topic_queues', 'brokers',"),
        ({"endpoints": "a:1", "pinSeconds": "3601"}, "option 'pinSeconds' is '3601': .* less than or equal to 3600"),
        ({"endpoints": "a:1", "topics": " , "}, "option 'topics': empty"),
        ({"endpoints": "a:1", "tlsCaFile": "/none"}, "option 'tls' is not 'true', but one of tlsCaFile"),
        ({**TLS, "tlsCaFile": "/none"}, "option 'tlsCaFile': /none: No such file"),
        ({**TLS, "tlsCaFile": __file__}, "option 'tlsCaFile': .* holds no certificates in PEM"),
        ({**TLS, "tlsCertFile": "/none"}, "options 'tlsCertFile' and 'tlsKeyFile' go together"),
        (
            {**TLS, "tlsCertFile": __file__, "tlsKeyFile": __file__},
            "options 'tlsCertFile' and 'tlsKeyFile': .* are no certificate and private key in PEM",
        ),
        ({"endpoints": "a:1", "tls": "maybe"}, "option 'tls' is 'maybe': .* boolean"),
        ({**TLS, "token": "two words"}, "option 'token': not 1 to 4096 visible ASCII characters"),
        ({**TLS, "token": "x", "tokenFile": "/none"}, "options 'token' and 'tokenFile' are both given"),
        ({**TLS, "tokenFile": "/none"}, "option 'tokenFile': /none: No such file"),
        ({"endpoints": "a:1", "token": "x"}, "option 'token' .* others could read it"),
        ({"endpoints": "a"}, "option 'endpoints': address 'a' has no port"),
        ({"endpoints": "a:1", "timeoutSeconds": "0"}, "option 'timeoutSeconds' is '0'"),
        ({"endpoints": "a:1", "timeoutSeconds": "nan"}, "option 'timeoutSeconds' is 'nan'"),
        ({"endpoints": "a:1", "connectTimeoutSeconds": "86401"}, "option 'connectTimeoutSeconds' is '86401'"),
    ],
)
def test_a_wrong_option_is_named_when_spark_asks_for_the_schema(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        data_source(**options).schema()


def test_outside_of_sparks_workers_an_error_is_as_it_is_raised() -> None:
    with pytest.raises(ValueError, match="option 'tabel'") as caught:
        data_source(endpoints="a:1", tabel="brokers")
    assert not hasattr(caught.value, "__notes__")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_a_stream_is_of_the_table_of_changes() -> None:
    with pytest.raises(ValueError, match="a stream is of table 'changes'"):
        data_source(endpoints="a:1").streamReader(StructType())


def test_of_three_name_servers_the_one_that_answers_is_read_where_that_was_asked_for() -> None:
    with serving(snapshot(topics_chunk(TopicTest=[queue("broker-a")]))) as fake:
        endpoints = {"endpoints": f"127.0.0.1:1,{fake.endpoint},127.0.0.1:2", "connectTimeoutSeconds": "1"}
        with pytest.raises(NamesrvError, match=r"^name server 127\.0\.0\.1:1: UNAVAILABLE.*refused"):
            data_source(**endpoints).reader(StructType()).partitions()
        going_on = data_source(**endpoints, onLost="continue").reader(StructType())
        (part,) = going_on.partitions()
        assert sum(batch.num_rows for batch in going_on.read(part)) == 1
    with pytest.raises(NamesrvError, match=r"no name server answers: name server 127.0.0.1:1: .*127.0.0.1:2: "):
        data_source(**endpoints, onLost="continue").reader(StructType()).partitions()


# Streams.

NOW = 1e9
MICROS = 10**15
SNAPSHOT = snapshot(topics_chunk(TopicTest=[queue("broker-a")]))
# Not UNAVAILABLE, which gRPC would try again for seconds.
DEAD = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "too late", reason="X", domain="namesrv.dev")

Pair = tuple[FakeNamesrv, FakeNamesrv]


@pytest.fixture
def fakes() -> Iterator[Pair]:
    with serving(SNAPSHOT) as first, serving(snapshot(namesrv="ns-b"), namesrv="ns-b") as second:
        yield first, second


@pytest.fixture
def fake(fakes: Pair) -> FakeNamesrv:
    return fakes[0]


def request_of(*fakes: FakeNamesrv, **options: str) -> ReadRequest:
    endpoints = ",".join(str(fake.endpoint) for fake in fakes)
    request = {"endpoints": endpoints, "table": "changes", "connectTimeoutSeconds": "1", **options}
    return ReadRequest.of(CaseInsensitiveDict(request), STREAMING)


def reader_of(*fakes: FakeNamesrv, **options: str) -> NamesrvStreamReader:
    return NamesrvStreamReader(request_of(*fakes, **options), clock=lambda: NOW)


def offset(fake: FakeNamesrv, revision: int) -> dict[str, Any]:
    fields = {"namesrv": fake.name, "epoch": "0001", "revision": revision, "state": "up", "snapshot": MICROS}
    return {"version": 2, "namesrvs": {str(fake.endpoint): fields | {"read_at": MICROS}}}


def kinds(parts: list[InputPartition]) -> list[type]:
    return [type(part.value) for part in parts]


def changes_part(fake: FakeNamesrv, after: int, up_to: int) -> ChangesPart:
    return ChangesPart(fake.endpoint, fake.name, Span("0001", after, up_to), MICROS, MICROS)


def rows_of(reader: NamesrvStreamReader, parts: list[InputPartition]) -> list[dict[str, Any]]:
    batches = [batch for part in parts for batch in reader.read(part)]
    assert all(batch.schema.equals(arrow_schema(schemas.CHANGES)) for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema(schemas.CHANGES)).to_pylist()
    return rows


def latest(reader: NamesrvStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


def test_the_first_batch_is_a_snapshot_of_each_whose_pin_ends_with_it(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    start = reader.initialOffset()
    end = latest(reader, start)

    parts = reader.partitions(start, end)
    assert kinds(parts) == [SnapshotPart] * 2
    rows = rows_of(reader, parts)
    assert [(row["namesrv"], row["table_name"], row["op"], row["from_snapshot"], row["key"]) for row in rows] == [
        ("ns-a", "topic_queues", "put", True, "TopicTest/DefaultCluster/broker-a"),
        ("ns-a", "reads", "snapshot", True, str(fakes[0].endpoint)),
        ("ns-b", "reads", "snapshot", True, str(fakes[1].endpoint)),
    ]
    assert latest(reader, end) == end
    assert reader.partitions(end, end) == []
    assert [fake.released for fake in fakes] == [[], []]
    reader.commit(end)
    reader.commit(end)
    assert [fake.released for fake in fakes] == [["pin-1"], ["pin-1"]]


def test_later_batches_are_the_changes_in_between(fake: FakeNamesrv) -> None:
    reader = reader_of(fake)
    static = queue("broker-a", 3)
    static.mapping.scope = "s"
    fake.changes = {7: [put("Old", queue("broker-a"))], 8: [put("New", static), gone("TopicTest")]}
    fake.revision = 9
    end = latest(reader, offset(fake, 7))
    (part,) = reader.partitions(offset(fake, 7), end)

    rows = rows_of(reader, [part])
    assert [(row["revision"], row["op"], row["topic"], row["read_queue_nums"], row["reason"]) for row in rows] == [
        (8, "put", "New", 3, None),
        (8, "remove", "TopicTest", None, "NOT_IN_REGISTRATION"),
        (9, "changes", None, None, None),
    ]
    assert rows[-1]["after_revision"] == 7
    assert rows[0]["static_mapping"] == '{"currIdMap":{},"dirty":false,"epoch":0,"scope":"s","totalQueues":0}'


def test_available_now_stops_where_the_name_server_was_at_the_start(fake: FakeNamesrv) -> None:
    reader = reader_of(fake)
    reader.prepareForTriggerAvailableNow()
    fake.revision = 20

    assert latest(reader, offset(fake, 2)) == offset(fake, 7)
    assert latest(reader, offset(fake, 9)) == offset(fake, 9), "a run before may have read past the target"


@pytest.mark.parametrize("harm", ["restarted", "compacted"])
def test_changes_that_go_after_the_plan_leave_a_hole_and_a_snapshot_follows(fake: FakeNamesrv, harm: str) -> None:
    reader = reader_of(fake, onCompacted="resync")
    planned = offset(fake, 7)
    if harm == "restarted":
        fake.epoch, fake.revision = "0002", 1
    else:
        fake.compacted_revision = 6
    (hole,) = rows_of(reader, reader.partitions(offset(fake, 5), planned))
    assert (hole["op"], hole["after_revision"], hole["revision"], hole["snapshot"]) == ("hole", 5, 7, MICROS)
    noted = latest(reader, planned)
    filled = latest(reader, noted)
    assert kinds(reader.partitions(noted, filled)) == [dict, SnapshotPart]
    assert filled["namesrvs"][str(fake.endpoint)]["snapshot"] == MICROS + 1


def test_a_batch_that_is_planned_anew_after_a_restart_is_followed_by_a_snapshot(fake: FakeNamesrv) -> None:
    planned = offset(fake, 7)
    fake.epoch, fake.revision = "0002", 3
    reader_of(fake).partitions(offset(fake, 5), planned)  # a sink that has had this batch throws the hole away
    reader = reader_of(fake)
    assert kinds(reader.partitions(planned, latest(reader, planned))) == [SnapshotPart]


def test_compacted_changes_fail_the_query_or_are_replaced_by_a_snapshot(fake: FakeNamesrv) -> None:
    fake.compacted_revision = 6
    with pytest.raises(NamesrvError, match=r"changes after revision 6 only.*onCompacted=resync"):
        latest(reader_of(fake), offset(fake, 5))
    assert latest(reader_of(fake), offset(fake, 6)) == offset(fake, 7)
    assert kinds(reader_of(fake).partitions(offset(fake, 6), offset(fake, 7))) == [ChangesPart]
    reader = reader_of(fake, onCompacted="resync")
    assert kinds(reader.partitions(offset(fake, 5), latest(reader, offset(fake, 5)))) == [SnapshotPart]


def test_a_lost_name_server_stands_still_while_the_others_go_on_and_its_loss_is_a_row(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    start = latest(reader, reader.initialOffset())
    fakes[1].refusal = DEAD
    fakes[0].revision = 8
    end = latest(reader, start)

    assert end["namesrvs"][str(fakes[1].endpoint)]["state"] == "lost"
    changes, loss = reader.partitions(start, end)
    assert changes.value == changes_part(fakes[0], 7, 8)
    (row,) = rows_of(reader, [loss])
    assert (row["namesrv"], row["op"], row["epoch"], row["revision"]) == ("ns-b", "lost", "0001", 7)
    assert "does not answer" in row["reason"]
    assert latest(reader, end) == end, "it is told once"


def test_a_name_server_lost_after_the_plan_leaves_a_hole_that_a_snapshot_fills(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    start = {"version": 2, "namesrvs": offset(fakes[0], 5)["namesrvs"] | offset(fakes[1], 5)["namesrvs"]}
    planned = latest(reader, start)
    fakes[1].refusal = DEAD
    parts = reader.partitions(start, planned)
    assert kinds(parts) == [ChangesPart, dict]
    (hole,) = rows_of(reader, [parts[1]])
    assert (hole["op"], hole["after_revision"], hole["revision"]) == ("hole", 5, 7)

    fakes[1].refusal = None  # back before anybody noticed: the changes after 7 alone would not do
    noted = latest(reader, planned)
    assert noted["namesrvs"][str(fakes[1].endpoint)]["state"] == "hole"
    assert kinds(reader.partitions(planned, noted)) == [dict]
    filled = latest(reader, noted)
    parts = reader.partitions(noted, filled)
    assert kinds(parts) == [dict, SnapshotPart]
    assert latest(reader, filled) == filled


def test_available_now_comes_to_its_end_though_a_name_server_is_lost_in_the_middle(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    reader.prepareForTriggerAvailableNow()
    fakes[1].refusal = DEAD
    start, plans = reader.initialOffset(), 0
    while (end := latest(reader, start)) != start:
        reader.partitions(start, end)
        start, plans = end, plans + 1
        assert plans < 5
    assert start["namesrvs"][str(fakes[1].endpoint)]["state"] == "hole"


def test_nobody_answering_is_an_error_and_a_refusal_is_no_loss(fakes: Pair) -> None:
    for fake in fakes:
        fake.refusal = DEAD
    reader = reader_of(*fakes)
    with pytest.raises(NamesrvError, match=r"no name server answers: .*; .*"):
        latest(reader, reader.initialOffset())
    fakes[0].refusal = None
    start = reader.initialOffset()
    loss = reader.partitions(start, latest(reader, start))[-1]
    assert rows_of(reader, [loss])[0]["namesrv"] == str(fakes[1].endpoint), "it never said its name"
    fakes[1].refusal = RichError(grpc.StatusCode.UNAUTHENTICATED, "who are you", reason="X", domain="namesrv.dev")
    with pytest.raises(NamesrvError, match="UNAUTHENTICATED X: who are you"):
        latest(reader, start)


def test_a_change_of_a_kind_that_is_not_known_is_kept_and_put_aside_in_the_log(fake: FakeNamesrv) -> None:
    unknown = type(gone("T")).FromString(b"\xfa\x3e\x03new")  # field 1007
    fake.changes = {7: [unknown, gone("T")]}
    part = InputPartition(changes_part(fake, 6, 7))
    (batch,) = reader_of(fake).read(part)
    row, known, _ = batch.to_pylist()
    assert (row["table_name"], row["op"], row["revision"]) == ("unknown", "unknown", 7)
    assert bytes.fromhex(row["reason"]) == b"\xfa\x3e\x03new"
    assert known["op"] == "remove"
    problems = problems_of(batch)
    assert problems is not None
    assert problems.to_pylist() == ["table_name is none of ours", None, None]


def test_an_address_that_was_added_waits_for_the_next_batch(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    parts = reader.partitions(offset(fakes[0], 5), offset(fakes[0], 7))
    assert [part.value for part in parts] == [changes_part(fakes[0], 5, 7)]
    after = latest(reader, offset(fakes[0], 7))
    assert Endpoint.parse(next(iter(after["namesrvs"]))) == fakes[0].endpoint
    (part,) = reader.partitions(offset(fakes[0], 7), after)
    assert part.value == SnapshotPart(fakes[1].endpoint, "pin-1", MICROS)


# A name server that is warming up.


@pytest.fixture
def cold(fake: FakeNamesrv, monkeypatch: pytest.MonkeyPatch) -> FakeNamesrv:
    monkeypatch.setattr(name_server, "WARM_POLL_SECONDS", 0.05)
    fake.warm = False
    return fake


def batch(fake: FakeNamesrv, **options: str) -> NamesrvReader:
    return data_source(endpoints=str(fake.endpoint), **options).reader(StructType())


def topics_of(reader: NamesrvReader) -> list[str]:
    batches = [one for part in reader.partitions() for one in reader.read(part)]
    return [row["topic"] for row in pa.Table.from_batches(batches).to_pylist()]


@pytest.mark.parametrize("table", ["topic_queues", "brokers", "changes"])
def test_a_batch_read_of_a_cold_name_server_is_refused_in_one_line(cold: FakeNamesrv, table: str) -> None:
    with pytest.raises(ColdError) as caught:
        batch(cold, table=table, onLost="continue").partitions()
    assert str(caught.value) == (
        f"name server ns-a at {cold.endpoint} is warming up, so brokers and topics may be missing: "
        "wait a minute, or set the option onCold to 'wait', or to 'read' for what it has so far"
    )
    assert len(cold.released) == len(cold.pins)


def test_a_cold_name_server_is_read_or_waited_for_where_that_was_asked_for(
    cold: FakeNamesrv, caplog: pytest.LogCaptureFixture
) -> None:
    assert topics_of(batch(cold, onCold="read")) == ["TopicTest"]
    assert topics_of(batch(cold, onCold="read", table="changes"))
    assert caplog.messages == []
    warms = threading.Timer(0.3, lambda: setattr(cold, "warm", True))
    warms.start()
    assert topics_of(batch(cold, onCold="wait")) == ["TopicTest"]
    assert caplog.messages == [f"waiting: name server ns-a at {cold.endpoint} is warming up"]
    cold.warm = False
    with pytest.raises(ColdError, match=r"waited 0\.2 s, the option timeoutSeconds$"):
        batch(cold, onCold="wait", timeoutSeconds="0.2").partitions()


def test_the_position_of_a_restarted_name_server_stands_still_until_it_is_warm(cold: FakeNamesrv) -> None:
    cold.warm = True
    reader = reader_of(cold)
    before = latest(reader, INITIAL)
    cold.epoch, cold.revision, cold.warm = "0002", 1, False
    assert latest(reader, before) == before
    assert reader.partitions(before, before) == []
    cold.warm = True
    assert latest(reader, before)["namesrvs"][str(cold.endpoint)]["epoch"] == "0002"


def test_available_now_waits_for_all_or_leaves_out_those_that_are_cold(cold: FakeNamesrv) -> None:
    following = Planner(request_of(cold), waits_for_all=False)
    following.fix_end()
    assert following.end({}) == {}
    threading.Timer(0.3, lambda: setattr(cold, "warm", True)).start()
    reader = reader_of(cold)
    reader.prepareForTriggerAvailableNow()
    assert latest(reader, INITIAL) != INITIAL


# Offsets that Spark kept.

FIELDS = {"namesrv": "ns", "epoch": "1-a", "revision": 3, "state": "up", "snapshot": 5, "read_at": 7}


def test_what_was_written_is_read_back() -> None:
    positions = {"a:1": Position("ns", "1-a", 3, snapshot=5, read_at=7), "b:2": Position(state=HOLE)}
    assert from_json(to_json(positions)) == positions
    assert from_json(INITIAL) == {}


WRONG = {"revision": 1.5, "snapshot": -1, "read_at": "now", "epoch": None, "namesrv": ["ns"], "state": "elsewhere"}
DAMAGED: list[Any] = [None, [], FIELDS | {"revision": True}, *(FIELDS | {key: WRONG[key]} for key in WRONG)]
OTHER: list[Any] = [[], 0, None, {}, {"version": 1}, {"version": True, "namesrvs": {}}, {"version": "1"}]


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        *((offset, "offsets of version .*, this program knows 2") for offset in OTHER),
        *(({"version": 2, "namesrvs": {"a:1": fields}}, "damaged") for fields in DAMAGED),
    ],
)
def test_an_offset_of_another_version_or_with_a_damaged_position_is_refused(offset: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"{problem}: start a new checkpoint"):
        from_json(offset)
