"""What a task of a batch writes, against a name server over real gRPC; no Spark."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from route_pipeline.batch_reader import SnapshotPart
from route_pipeline.log import ingest
from route_pipeline.log.ingest import Staged, Stager
from route_pipeline.log.protocol.commits import CHANGES, QUARANTINE, Span
from route_pipeline.name_server import NamesrvError
from route_pipeline.options import ReadRequest
from route_pipeline.stores.store import Store, StoreError
from route_pipeline.stores.urls import open_store
from tests.support.fakes.snapshot_name_server import (
    FakeNamesrv,
    Response,
    fleet_chunk,
    header,
    queue,
    serving,
    snapshot,
    topics_chunk,
)

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
DAY = "data/2026-01-02"
TOPICS = topics_chunk(TopicTest=[queue("broker-a"), queue("broker-b")], Odd=[queue("broker-a", perm=9)])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(tmp_path)
    store.make_folder(DAY)
    return store


def staged(store: Store, fake: FakeNamesrv) -> Staged:
    """What a task writes for a snapshot; all travels as with Spark."""
    request = ReadRequest.of_options({"endpoints": str(fake.endpoint), "table": "changes"}, streaming=True)
    part = pickle.loads(pickle.dumps(SnapshotPart(fake.endpoint, "pin-1")))
    stager: Stager = pickle.loads(pickle.dumps(Stager(request, store, NOON)))
    told: Staged = pickle.loads(pickle.dumps(stager(part)))
    return told


def test_good_rows_and_rows_that_break_the_contract_go_to_files_of_their_own(tmp_path: Path, store: Store) -> None:
    with serving(snapshot(fleet_chunk(id0="10.0.0.1:10911"), TOPICS)) as fake:
        good, bad = staged(store, fake).files

    assert (good.table, bad.table) == (CHANGES, QUARANTINE)
    rows = pq.read_table(tmp_path / good.path)
    assert (good.rows, good.size, good.date) == (rows.num_rows, (tmp_path / good.path).stat().st_size, "2026-01-02")
    assert good.spans == (Span("ns-a", "0001", 7, 7),)
    assert rows["topic"].drop_null().to_pylist() == ["TopicTest", "TopicTest"]
    assert set(rows["ingested_at"].to_pylist()) == {NOON}
    (row,) = pq.read_table(tmp_path / bad.path).to_pylist()
    assert (row["topic"], row["problem"], row["ingested_at"]) == ("Odd", "perm is not 0 to 7", NOON)


def test_a_task_that_is_repeated_writes_another_file(tmp_path: Path, store: Store) -> None:
    with serving(snapshot(TOPICS)) as fake:
        first, again = ({file.path for file in staged(store, fake).files} for _ in range(2))
    assert first.isdisjoint(again)
    assert len(list((tmp_path / DAY).iterdir())) == 4


def test_rows_are_held_until_a_row_group_is_full_and_no_longer(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "ROW_GROUP_ROWS", 4)
    chunks = [topics_chunk(**{f"T{number}": [queue("broker-a"), queue("broker-b")]}) for number in range(5)]
    with serving(snapshot(*chunks)) as fake:
        (good,) = staged(store, fake).files

    metadata = pq.read_metadata(tmp_path / good.path)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 3]


def test_a_snapshot_that_breaks_off_is_an_error_and_no_file_of_it_is_told(store: Store) -> None:
    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header()
        yield Response(chunk=TOPICS)
        context.abort(grpc.StatusCode.INTERNAL, "killed")

    with serving(broken) as fake, pytest.raises(NamesrvError, match="INTERNAL: killed"):
        staged(store, fake)


def test_a_folder_that_is_not_there_for_the_task_is_named(tmp_path: Path) -> None:
    with (
        serving(snapshot(TOPICS)) as fake,
        pytest.raises(StoreError, match=r"gone/.*parquet cannot be written to: No such file or directory$"),
    ):
        staged(open_store(tmp_path / "gone"), fake)


def test_a_task_counts_its_rows_by_name_server(store: Store) -> None:
    whole = Staged()
    for namesrv in ("ns-b", "ns-a"):
        with serving(snapshot(TOPICS, namesrv=namesrv), namesrv=namesrv) as fake:
            whole.add(staged(store, fake))

    assert (whole.rows, whole.quarantined) == (Counter({"ns-a": 3, "ns-b": 3}), Counter({"ns-a": 1, "ns-b": 1}))
    read = whole.reads[1]
    assert (read["namesrv"], read["op"], read["epoch"], read["revision"]) == ("ns-a", "snapshot", "0001", 7)
