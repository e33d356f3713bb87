"""Compaction: fewer files with the same rows, whoever reads, writes or dies meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from route_pipeline.log import compaction, files
from route_pipeline.log.compaction import GRACE, CompactionError, compact
from route_pipeline.log.data_files import NewFile, folder_of
from route_pipeline.log.export import DONE, export
from route_pipeline.log.protocol.commits import BATCH, CHANGES
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import LogWriter
from route_pipeline.stores.store import StoreError
from route_pipeline.stores.urls import open_store
from tests.support.fakes.passing_store import Died, DyingStore
from tests.support.routes.log_rows import append, revisions_of, rows, write


def filled(place: str) -> RouteLog:
    """Three batches of one day, two of another."""
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for revision in range(5):
        append(writer, revision, days=revision // 3)
    return log


def test_the_files_of_each_day_become_one_with_the_same_rows(place: str) -> None:
    log = filled(place)
    old = [file.path for file in log.state().files.values()]

    done = compact(log)

    assert (done.days, done.files_before, done.files_after) == (("2026-01-02", "2026-01-03"), 5, 2)
    assert revisions_of(log) == [0, 1, 2, 3, 4]
    (first, _) = log.state().files_of(CHANGES)
    assert [(span.first, span.last) for span in first.spans] == [(0, 2)]
    on_store = {file.path for file in log.store.files("data")}
    assert on_store > set(old), "readers that listed them go on"
    assert compact(log).days == ()


def test_what_was_replaced_goes_after_a_while_and_what_no_commit_has_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(str(tmp_path / "log"))
    orphan = write(log.store, 9)[0].path
    compact(log)
    assert compact(log).deleted == 0
    # Each compaction takes the store's time when it begins: the next one may be a moment behind.
    assert compact(log, -GRACE).deleted == 5
    assert orphan in [file.path for file in log.store.files("data")]
    assert log.state().removed == {}
    monkeypatch.setattr(compaction, "ORPHAN_AGE", timedelta(seconds=-5))
    assert compact(log).deleted == 1
    assert len(log.store.files("data")) == 2
    assert revisions_of(log) == [0, 1, 2, 3, 4]


@pytest.mark.timeout(600)
def test_died_at_any_step_no_row_is_missing_or_there_twice(place: str) -> None:
    # Each moment on a folder; on a slower server, every fifth.
    for moment in range(0, 200, 5 if "://" in place else 1):
        log = filled(f"{place}/{moment}")
        try:
            compact(RouteLog(DyingStore(log.store, dies_before=moment), log.id), timedelta(0))
        except Died:
            pass
        else:
            break
        assert revisions_of(log) == [0, 1, 2, 3, 4], moment
        assert compact(log, timedelta(0)).files_after == 2
        assert revisions_of(log) == [0, 1, 2, 3, 4], moment
    assert moment > 10


def test_of_two_compactions_the_slower_one_ends_in_one_line(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(place)
    slow = LogWriter(log)
    compact(log)
    monkeypatch.setattr(compaction, "LogWriter", lambda _log: slow)
    with pytest.raises(CompactionError, match="was replaced by another process meanwhile"):
        compact(log)
    assert revisions_of(log) == [0, 1, 2, 3, 4]


def test_large_files_stay_and_files_are_not_made_larger_than_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ROWS_A_FILE", 4)
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    append(writer, 1, 2, 3)
    for revision in range(4, 10):
        append(writer, revision)
    compact(log)
    assert sorted(file.rows for file in log.state().files.values()) == [2, 3, 4]


def test_columns_that_a_newer_version_wrote_are_not_dropped(tmp_path: Path) -> None:
    log = filled(str(tmp_path / "log"))
    newer = rows(7).append_column("colour", pa.array(["blue"]))
    log.store.make_folder(folder_of("2026-01-02"))
    with NewFile(log.store, CHANGES, "2026-01-02", BATCH) as file:
        file.write(newer)
    LogWriter(log).append("of-tomorrow", add=file.files())

    assert compact(log).days == ("2026-01-03",)
    found = [pq.read_table(path) for path in files(log.url)]
    assert sum("colour" in table.column_names for table in found) == 1


def test_a_file_that_is_missing_is_named_and_nothing_changes(place: str) -> None:
    log = filled(place)
    first = next(iter(log.state().files))
    log.store.delete(first)
    with pytest.raises(StoreError, match=rf"{first} is missing"):
        compact(log)
    assert log.state().number == 5


def test_the_copy_for_others_is_plain_folders_of_days(place: str, tmp_path: Path) -> None:
    log = filled(place)
    assert export(log, tmp_path / "plain") == 5
    assert (tmp_path / "plain" / DONE).exists()
    table = pq.read_table(tmp_path / "plain")
    assert sorted(table["revision"].to_pylist()) == [0, 1, 2, 3, 4]
    assert sorted({str(day) for day in table["date"].to_pylist()}) == ["2026-01-02", "2026-01-03"]
    with pytest.raises(StoreError, match="holds something already"):
        export(log, tmp_path / "plain")
    assert export(log, f"{place}-copy") == 5
    assert len(open_store(f"{place}-copy").files("date=2026-01-02")) == 3


def test_the_stores_clock_counts_and_not_this_machines(place: str) -> None:
    writer = LogWriter(RouteLog.create(place))
    assert abs(writer.store_time - datetime.now(UTC)) < timedelta(minutes=5)
