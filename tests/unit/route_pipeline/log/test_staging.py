"""What a task of a batch writes, against a name server over real gRPC; no Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest

from route_pipeline.log import staging
from route_pipeline.log.batch_counts import brought
from route_pipeline.log.staging import BAD, GOOD, PART, PartsReader, Stager, StagingError
from route_pipeline.source.batch_reader import SnapshotPart
from route_pipeline.source.connection import NamesrvError
from route_pipeline.source.options import ReadRequest
from route_pipeline.source.snapshot_reader import WHOLE, ShardOf
from support.fakes.snapshot_name_server import (
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
TOPICS = topics_chunk(TopicTest=[queue("broker-a"), queue("broker-b")], Odd=[queue("broker-a", perm=9)])


def staged(folder: Path, fake: FakeNamesrv, shard: ShardOf = WHOLE) -> list[str]:
    """The files that a task writes for a shard of a snapshot; all travels as with Spark."""
    request = ReadRequest.of_options({"endpoints": str(fake.endpoint), "table": "changes"}, streaming=True)
    (planned,) = PartsReader(request).read(SnapshotPart(fake.endpoint, "pin-1", shard))
    stager: Stager = pickle.loads(pickle.dumps(Stager(request, folder, NOON)))
    return stager(planned[PART][0].as_py())


def test_good_rows_and_rows_that_break_the_contract_go_to_files_of_their_own(tmp_path: Path) -> None:
    with serving(snapshot(fleet_chunk(id0="10.0.0.1:10911"), TOPICS)) as fake:
        good, bad = staged(tmp_path, fake)

    assert (good.partition("-")[0], bad.partition("-")[0]) == (GOOD, BAD)
    rows = pq.read_table(tmp_path / good)
    assert rows["topic"].drop_null().to_pylist() == ["TopicTest", "TopicTest"]
    assert set(rows["ingested_at"].to_pylist()) == {NOON}
    (row,) = pq.read_table(tmp_path / bad).to_pylist()
    assert (row["topic"], row["problem"], row["ingested_at"]) == ("Odd", "perm is not 0 to 7", NOON)


def test_a_part_without_rows_is_no_file(tmp_path: Path) -> None:
    with serving(snapshot()) as fake:
        assert staged(tmp_path, fake, ShardOf(1, 2)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_repeated_writes_another_file(tmp_path: Path) -> None:
    with serving(snapshot(TOPICS)) as fake:
        assert set(staged(tmp_path, fake)).isdisjoint(staged(tmp_path, fake))
    assert len(list(tmp_path.iterdir())) == 4


def test_rows_are_held_until_a_row_group_is_full_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROW_GROUP_ROWS", 4)
    chunks = [topics_chunk(**{f"T{number}": [queue("broker-a"), queue("broker-b")]}) for number in range(5)]
    with serving(snapshot(*chunks)) as fake:
        (good,) = staged(tmp_path, fake)

    metadata = pq.read_metadata(tmp_path / good)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 3]


def test_a_snapshot_that_breaks_off_is_an_error_and_no_file_of_it_is_told(tmp_path: Path) -> None:
    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header()
        yield Response(chunk=TOPICS)
        context.abort(grpc.StatusCode.INTERNAL, "killed")

    with serving(broken) as fake, pytest.raises(NamesrvError, match="INTERNAL: killed"):
        staged(tmp_path, fake)


def test_a_folder_that_is_not_there_for_the_task_is_named(tmp_path: Path) -> None:
    with (
        serving(snapshot(TOPICS)) as fake,
        pytest.raises(StagingError, match=r"gone cannot be written to: No such file or directory$"),
    ):
        staged(tmp_path / "gone", fake)


def test_a_batch_is_counted_from_its_files_by_name_server(tmp_path: Path) -> None:
    for namesrv in ("ns-b", "ns-a"):
        with serving(snapshot(TOPICS, namesrv=namesrv), namesrv=namesrv) as fake:
            for name in staged(tmp_path, fake):
                kind, _, target = name.partition("-")
                (tmp_path / kind).mkdir(exist_ok=True)
                (tmp_path / name).rename(tmp_path / kind / target)

    counted = brought(tmp_path / GOOD, tmp_path / BAD)

    assert [(namesrv, counts.rows, counts.quarantined) for namesrv, counts in counted.items()] == [
        ("ns-a", 3, 1),
        ("ns-b", 3, 1),
    ]
    (read,) = counted["ns-a"].reads
    assert (read["namesrv"], read["op"], read["epoch"], read["revision"]) == ("ns-a", "snapshot", "0001", 7)
    assert brought(tmp_path / "none", tmp_path / "neither") == {}
