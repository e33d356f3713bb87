"""The log as it is written: a batch is there whole and once, whatever goes wrong with its commit."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from route_pipeline.log.data_files import statistics_of
from route_pipeline.log.place import STATISTICS, LogError, Place, StoreError
from route_pipeline.log.route_log import ConflictError, RouteLog
from route_pipeline.questions import questions
from tests.support.patience import TIMEOUT
from tests.support.programs.s3_server import make_bucket, running_s3_server, s3_client
from tests.support.routes.log_rows import NOON, append, append_rows, cluster, read, revisions_of, staged

COMMIT = "create_write_transaction"


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server that runs."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder, or a prefix of a bucket. Nothing is there yet."""
    if request.param == "folder":
        return Place(str(tmp_path / "some log"))
    return Place(f"s3://{make_bucket(request.getfixturevalue('s3_server'))}/some/log")


def test_a_batch_is_there_once_its_commit_is(place: Place) -> None:
    log = RouteLog(place)
    left = staged(place, cluster(1), cluster(2))  # of a program that ended before its commit
    assert append(log, 3, 4) == 0

    assert revisions_of(place) == [3, 4]
    again = RouteLog(place)
    assert again.batch == 0
    position = again.reads["ns-a"].position
    assert (position.epoch, position.revision, position.snapshot, position.state) == ("01", 4, 1, "up")
    assert left.files[0]["path"] not in "".join(log.table.file_uris())


def test_of_writers_of_one_batch_one_wins_and_the_others_end_in_one_line(place: Place) -> None:
    RouteLog(place)
    for number in range(5):
        logs, barrier = [RouteLog(place) for _ in range(3)], Barrier(3)

        def race(log: RouteLog, barrier: Barrier = barrier, revision: int = number + 1) -> str:
            barrier.wait(TIMEOUT)
            try:
                append_rows(log, cluster(revision), read(revision))
            except ConflictError as error:
                return str(error)
            return "won"

        with ThreadPoolExecutor(3) as pool:
            told = list(pool.map(race, logs))
        assert told.count("won") == 1
        pattern = rf"another program, \S+, writes to {re.escape(place.url)}: this one ends"
        assert all(text == "won" or re.fullmatch(pattern, text) for text in told)
    assert revisions_of(place) == [1, 2, 3, 4, 5]


def test_a_writer_that_slept_is_refused_and_goes_on_once_it_has_caught_up(place: Place) -> None:
    sleeper, other = RouteLog(place), RouteLog(place)
    append(other, 1)
    with pytest.raises(ConflictError):
        append(sleeper, 1)
    sleeper.catch_up()
    assert sleeper.reads["ns-a"].position.revision == 1
    assert append(sleeper, 2) == 1
    assert revisions_of(place) == [1, 2]


def test_a_commit_whose_answer_is_lost_is_recognised(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log, commit = RouteLog(place), DeltaTable.create_write_transaction

    def loses_answer(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        raise OSError("Generic S3 error: 500 after it succeeded")

    monkeypatch.setattr(DeltaTable, COMMIT, loses_answer)
    for revision in (1, 2, 3):
        append(log, revision)
    assert revisions_of(place) == [1, 2, 3]


def test_a_commit_that_is_refused_is_one_line_and_the_next_try_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RouteLog(place)

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError("\x1b[31mGeneric S3 error\x1b[0m: 403\n\nSource: a stack")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, COMMIT, refuses)
        with pytest.raises(StoreError) as caught:
            append(log, 1)
    assert str(caught.value) == f"batch 0 is not in {place.url}: Generic S3 error: 403"
    assert append(log, 1) == 0
    assert revisions_of(place) == [1]


@pytest.mark.parametrize(
    "left", [lambda _: b"", lambda content: content[: len(content) // 2], lambda content: bytes(len(content))]
)
def test_a_last_commit_that_a_stopped_machine_left_cut_is_put_aside(
    tmp_path: Path, left: Callable[[bytes], bytes]
) -> None:
    place = Place(str(tmp_path / "log"))
    log = RouteLog(place)
    for revision in (1, 2, 3):
        append(log, revision)
    commit = tmp_path / "log" / "changes" / "_delta_log" / f"{log.table.version():020}.json"
    commit.write_bytes(left(commit.read_bytes()))

    repaired = RouteLog(place)
    assert (repaired.batch, repaired.reads["ns-a"].position.revision) == (1, 2)
    append(repaired, 3)
    assert revisions_of(place) == [1, 2, 3]


def _foreign(folder: Path) -> None:
    write_deltalake(str(folder / "changes"), pa.table({"a": [1]}))


def _other(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").touch()


def _newer(folder: Path) -> None:
    append(log := RouteLog(Place(str(folder))), 1)
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
    commit = folder / "changes" / "_delta_log" / f"{log.table.version() + 1:020}.json"
    commit.write_text(json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}) + "\n")


def _with_a_hole(folder: Path) -> None:
    log = RouteLog(Place(str(folder)))
    for revision in (1, 2, 3):
        append(log, revision)
    (folder / "changes" / "_delta_log" / f"{2:020}.json").unlink()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_foreign, "is another table: it has no column batch"),
        (_other, "holds something else than a route log"),
        (_newer, "fromTheFuture"),
        (_with_a_hole, "cannot be opened: "),
    ],
)
def test_what_is_no_log_of_ours_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], None], problem: str
) -> None:
    make(tmp_path / "log")
    with pytest.raises(LogError) as caught:
        append(RouteLog(Place(str(tmp_path / "log"))), 2)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_a_newer_program_adds_disturbs_an_older_writer_once(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "log"))
    older = RouteLog(place)
    append(older, 1)
    RouteLog(place).table.alter.add_columns([Field("added_later", PrimitiveType("string"), nullable=True)])
    with pytest.raises(StoreError):
        append(older, 2)
    older.catch_up()
    append(older, 2)
    assert revisions_of(place) == [1, 2]


def test_a_stream_that_was_planned_without_the_log_may_not_repeat_a_snapshot(place: Place) -> None:
    log = RouteLog(place)
    append(log, 1, op="snapshot")
    with pytest.raises(ConflictError, match=r"has a later snapshot of ns-a .* new checkpoint"):
        append(log, 2, op="snapshot")
    assert revisions_of(place) == [1]


def test_statistics_are_those_of_the_file(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "log"))
    log = RouteLog(place)
    append_rows(log, *(cluster(number, name=f"c{number:03}") for number in range(300)), read(300))
    (path,) = (uri for uri in log.table.file_uris() if "kind=changes" in uri)
    table, told = pq.read_table(path), json.loads(statistics_of(pq.read_metadata(path)))
    assert told["numRecords"] == 300
    assert set(told["nullCount"]) == set(STATISTICS)
    for name in STATISTICS:
        values = [value for value in table[name].to_pylist() if value is not None]
        assert told["nullCount"][name] == 300 - len(values)
        if values:
            ends = [
                value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value for value in values
            ]
            assert (told["minValues"][name], told["maxValues"][name]) == (min(ends), max(ends))


def test_the_position_is_of_a_name_server_and_not_of_its_address(place: Place) -> None:
    log = RouteLog(place)
    for reads in (
        [
            read(0, "lost", namesrv="h:1", epoch="", key="h:1", snapshot=0),
            read(5, "snapshot", namesrv="ns-b", key="h:2"),
        ],
        [read(1, "snapshot", key="h:1")],
        [read(7, namesrv="ns-b", key="other:2")],
        [read(9, "snapshot", namesrv="ns-c", key="h:1", snapshot=2)],
    ):
        append_rows(log, *reads)
    assert log.reads == RouteLog(place).reads
    told = {name: (one.address, one.position.revision) for name, one in log.reads.items()}
    assert told == {"ns-a": ("", 1), "ns-b": ("other:2", 7), "ns-c": ("h:1", 9)}


def test_a_quiet_name_server_is_known_for_longer_and_a_lost_one_is_not(place: Place) -> None:
    log = RouteLog(place, now=lambda: NOON + timedelta(hours=3))
    append_rows(log, read(1, "snapshot"), read(1, "snapshot", namesrv="ns-b", key="h:2"))
    append_rows(log, read(1, "lost", namesrv="ns-b", key="h:2", at=NOON + timedelta(hours=1)))
    later = NOON + timedelta(hours=2)
    quiet = {name: int(later.timestamp() * 1e6) for name in ("ns-a", "ns-b")}
    log.append([], [], quiet=quiet)
    again = RouteLog(place)
    assert {name: one.known_until for name, one in again.reads.items()} == {"ns-a": later, "ns-b": NOON}
    assert again.reads["ns-b"].position.state == "lost"
    with questions(place) as asked:
        told = {one["namesrv"]: (one["known_to"], one["lost"]) for one in asked.name_servers()}
    assert told == {"ns-a": (later, False), "ns-b": (NOON, True)}


def test_maintenance_replaces_files_by_fewer_and_changes_no_row(place: Place) -> None:
    log = RouteLog(place)
    for revision in range(1, 6):
        append(log, revision, op="snapshot" if revision == 1 else "changes")
    assert log.maintain(None, timedelta(hours=1)) == (10, 2, 0)
    assert revisions_of(place) == [1, 2, 3, 4, 5]
    append(log, 6)
    assert RouteLog(place).reads["ns-a"].position.revision == 6
    with pytest.raises(LogError, match="--grace-hours is at least 1"):
        log.maintain(None, timedelta(minutes=5))


def test_polars_reads_each_row_once_before_and_after_a_compaction(tmp_path: Path) -> None:
    log = RouteLog(Place(str(tmp_path / "log")))
    for revisions in ((1,), (2,), (3, 4)):
        append(log, *revisions)
    staged(log.place, cluster(9))  # of a batch that was killed before its commit
    for _ in range(2):
        frame = pl.scan_delta(log.place.table).filter(pl.col("kind") == "changes").collect()
        assert sorted(frame["revision"]) == [1, 2, 3, 4]
        log.maintain(None, timedelta(hours=1))


def test_days_are_dropped_only_if_each_name_server_has_a_snapshot_since(place: Place) -> None:
    today = NOON
    log = RouteLog(place, now=lambda: today)
    append(log, 1, op="snapshot")
    today = NOON + timedelta(days=10)
    append_rows(log, cluster(2), read(2), at=today)
    with pytest.raises(LogError, match="ns-a: no snapshot since 2026-01-07, so nothing would be known"):
        log.maintain(5, timedelta(hours=1))
    append_rows(log, cluster(3, snapshot=2), read(3, "snapshot", snapshot=2), at=today)
    log.maintain(5, timedelta(hours=1))
    assert revisions_of(place) == [2, 3]
    assert RouteLog(place).reads["ns-a"].position.revision == 3


def test_a_disk_without_hard_links_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(LogError, match=r"Operation not permitted \(the file system has no hard links\)$"):
        RouteLog(Place(str(tmp_path / "log")))
    assert list((tmp_path / "log").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount, which makes a small disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: that needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=TIMEOUT, check=True)


def test_a_disk_full_at_any_point_of_a_batch_is_told_and_costs_nothing(small_disk: Path) -> None:
    filler, told = small_disk / "filler", Counter[str]()
    place = Place(str(small_disk / "log"))
    for pages in range(60):  # the probe does not fit, then the table, the rows, the commit
        filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - pages * 4_096))
        try:
            append(RouteLog(place), 1)
            break
        except LogError as error:
            told[str(error)] += 1
        finally:
            filler.unlink()
    assert len(told) > 2
    assert [text for text in told if "\n" in text or "No space left on device" not in text] == []
    assert revisions_of(place) == [1]


@pytest.mark.slow
def test_a_writer_ends_whose_commit_the_bucket_let_another_overwrite(
    s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make_bucket(s3_server)
    options = {"AWS_ENDPOINT_URL": s3_server}  # which win over the environment
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    log, other = (RouteLog(Place(f"s3://{bucket}/{name}", options)) for name in ("log", "other"))
    append(log, 1)
    append(other, 2)
    commit = f"changes/_delta_log/{log.table.version():020}.json"
    store = s3_client(s3_server)
    store.copy_object(Bucket=bucket, Key=f"log/{commit}", CopySource=f"{bucket}/other/{commit}")
    with pytest.raises(ConflictError, match=r"the bucket must refuse that \(If-None-Match\)$"):
        append(log, 3)
