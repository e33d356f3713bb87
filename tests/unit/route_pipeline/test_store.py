"""The folder of ingests: what is taken for ours, and what is visible when."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from route_pipeline.schemas import ROW_COLUMNS
from route_pipeline.store import IngestInProgress, RouteStore, StoreError

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


def write_tables(progress: IngestInProgress, tables: list[str] | None = None) -> None:
    for table in ROW_COLUMNS if tables is None else tables:
        progress.folder(table).mkdir()
        (progress.folder(table) / "part-0.parquet").touch()


def visible_files(store: RouteStore) -> list[Path]:
    return sorted(store.folder.rglob("*.parquet"))


def test_a_committed_ingest_is_visible_under_every_table(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path / "new" / "out")
    with store.new_ingest(NOON) as progress:
        write_tables(progress)
        assert store.ingest_ids() == []
        progress.commit()

    assert store.ingest_ids() == ["20260102T120000.000005Z"]
    for table in ROW_COLUMNS:
        assert (store.table_folder(table, store.latest_ingest_id()) / "part-0.parquet").exists()


def test_an_ingest_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)

    def fail() -> None:
        with store.new_ingest(NOON) as progress:
            write_tables(progress)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert visible_files(store) == []
    assert store.ingest_ids() == []


def test_a_commit_that_fails_half_way_takes_back_what_it_moved(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    *others, snapshots = ROW_COLUMNS
    assert snapshots == "snapshots", "its part appears last and makes the ingest count"
    with store.new_ingest(NOON) as progress:
        write_tables(progress, others)
        with pytest.raises(StoreError, match="cannot be moved"):
            progress.commit()

    assert visible_files(store) == []
    assert store.ingest_ids() == []


def test_the_latest_ingest_is_the_last_by_time_whatever_zone_it_was_said_in(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    for at in (NOON + timedelta(microseconds=1), NOON):
        with store.new_ingest(at) as progress:
            write_tables(progress)
            progress.commit()

    assert store.latest_ingest_id() == "20260102T120000.000006Z"


def test_two_ingests_of_one_microsecond_cannot_mix(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    with store.new_ingest(NOON), pytest.raises(StoreError, match="File exists"), store.new_ingest(NOON):
        pass


def test_a_folder_of_ours_is_taken_again(tmp_path: Path) -> None:
    RouteStore.create(tmp_path)

    assert RouteStore.create(tmp_path).folder == tmp_path
    assert RouteStore.open(tmp_path).folder == tmp_path


@pytest.mark.parametrize("open_store", [RouteStore.create, RouteStore.open])
def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path, open_store: object) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    assert callable(open_store)
    with pytest.raises(StoreError, match="holds something else"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be written to"):
        RouteStore.create(tmp_path / "file")
    with pytest.raises(StoreError, match="is not a folder"):
        RouteStore.open(tmp_path / "file")


@pytest.mark.parametrize("content", ["", "[]", "{}", "{"])
def test_a_damaged_marker_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "route_pipeline.json").write_text(content)

    with pytest.raises(StoreError, match=r"route_pipeline\.json is damaged"):
        RouteStore.open(tmp_path)


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "route_pipeline.json").write_text(json.dumps({"layout_version": 2}))

    with pytest.raises(StoreError, match="has layout version 2"):
        RouteStore.open(tmp_path)


def test_a_store_without_an_ingest_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no ingest yet"):
        RouteStore.create(tmp_path).latest_ingest_id()


@pytest.mark.parametrize(("name", "problem"), [("s3a://bucket/routes", "is a URL"), ("/data/[new]", "a pattern")])
def test_a_name_that_spark_would_misread_is_refused(name: str, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        RouteStore.create(Path(name))
