"""The stream's plans and rows, called as Spark calls them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from route_pipeline import schemas
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.name_server import NamesrvError, Span
from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.quality import problems_of
from route_pipeline.spark_readers import NamesrvStreamReader
from tests.support.fakes.snapshot_name_server import FakeNamesrv, gone, put, queue, serving, snapshot, topics_chunk

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


def reader_of(*fakes: FakeNamesrv, **options: str) -> NamesrvStreamReader:
    endpoints = ",".join(str(fake.endpoint) for fake in fakes)
    request = {"endpoints": endpoints, "table": "changes", "connectTimeoutSeconds": "1", **options}
    return NamesrvStreamReader(ReadRequest.of(CaseInsensitiveDict(request), STREAMING), clock=lambda: NOW)


def offset(
    fake: FakeNamesrv, revision: int, epoch: str = "0001", state: str = "up", snapshot: int = MICROS
) -> dict[str, Any]:
    fields = {"namesrv": fake.namesrv, "epoch": epoch, "revision": revision, "state": state, "snapshot": snapshot}
    return {"version": 2, "namesrvs": {str(fake.endpoint): fields | {"read_at": MICROS}}}


def kinds(parts: list[InputPartition]) -> list[type]:
    return [type(part.value) for part in parts]


def changes_part(fake: FakeNamesrv, after: int, up_to: int) -> ChangesPart:
    return ChangesPart(fake.endpoint, fake.namesrv, Span("0001", after, up_to), MICROS, MICROS)


def rows_of(reader: NamesrvStreamReader, parts: list[InputPartition]) -> list[dict[str, Any]]:
    batches = [batch for part in parts for batch in reader.read(part)]
    assert all(batch.schema.equals(arrow_schema(schemas.CHANGES)) for batch in batches)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema(schemas.CHANGES)).to_pylist()
    return rows


def latest(reader: NamesrvStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


def test_the_first_batch_is_a_snapshot_of_each_name_server(fakes: Pair) -> None:
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


def test_the_pins_of_a_batch_are_released_when_it_is_done(fakes: Pair) -> None:
    reader = reader_of(*fakes)
    start = reader.initialOffset()
    end = latest(reader, start)
    reader.partitions(start, end)
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


def test_a_restarted_name_server_is_read_from_a_snapshot(fake: FakeNamesrv) -> None:
    reader = reader_of(fake)
    fake.epoch, fake.revision = "0002", 1
    end = latest(reader, offset(fake, 7))

    assert end == offset(fake, 1, epoch="0002", snapshot=MICROS + 1)
    assert kinds(reader.partitions(offset(fake, 7), end)) == [SnapshotPart]


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
