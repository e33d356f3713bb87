"""The folder of the change log: what is taken for ours, and what is visible when."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from groundwork.files import disk
from groundwork.files.failpoints import Failpoints
from route_pipeline.log.store import Batch, RouteStore, Run, StoreError

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
GOOD, BAD = "quarantined=false", "quarantined=true"


def stage(batch: Batch) -> None:
    for folder in (GOOD, BAD):
        (batch.staged / folder).mkdir(parents=True)
        (batch.staged / folder / "part-0.parquet").touch()


def begun(store: RouteStore, run: Run, batch_id: int = 0, at: datetime = NOON) -> Batch:
    batch = store.batch(run, batch_id, at)
    assert batch is not None
    return batch


def test_a_published_batch_is_at_the_place_of_its_day_and_run(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path / "new" / "out")
    with store.writing():
        run = store.run()
        batch = begun(store, run)
        stage(batch)
        assert not batch.changes.exists()
        batch.publish(GOOD, BAD)

    part = f"date=2026-01-02/run={run.run_id}/batch_id=0/part-0.parquet"
    assert (store.changes / part).exists()
    assert (store.quarantine / part).exists()
    assert not batch.staged.exists()


def test_a_batch_with_its_summary_is_never_written_again(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    run = store.run()
    begun(store, run).summary.touch()

    assert store.batch(run, 0, NOON + timedelta(days=1)) is None
    assert store.batch(run, 1, NOON) is not None
    assert store.batch(store.run(new=True), 0, NOON) is not None


def test_a_batch_that_was_published_before_a_crash_wants_only_its_summary_whatever_day_it_is_now(
    tmp_path: Path,
) -> None:
    store = RouteStore.create(tmp_path)
    run = store.run()
    batch = begun(store, run)
    stage(batch)
    batch.publish(GOOD, BAD)

    again = begun(store, run, at=NOON + timedelta(days=1))

    assert (again.is_staged, again.changes) == (True, batch.changes)
    assert (batch.changes / "part-0.parquet").exists()


def test_what_a_crash_left_of_a_batch_is_taken_away_before_it_is_written_again(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    run = store.run()
    batch = begun(store, run)
    stage(batch)
    batch.quarantine.parent.mkdir(parents=True)
    (batch.staged / BAD).rename(batch.quarantine)  # killed between its two renames

    again = begun(store, run, at=NOON + timedelta(days=1))

    assert not again.is_staged
    assert not batch.quarantine.exists()
    assert not batch.staged.exists()


def test_a_run_goes_on_once_it_has_a_checkpoint(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    run = store.run()
    run.checkpoint.mkdir(parents=True)

    assert store.run() == run
    assert store.run(new=True) != run


def test_two_writers_cannot_mix(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    with store.writing(), pytest.raises(StoreError, match="another ingest or compaction"), store.writing():
        pass


def test_a_compaction_that_was_killed_between_its_renames_is_ended_by_the_next_writer(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    for name in ("old-date=2026-01-02", "compacted-date=2026-01-02", "compacted-date=2026-01-03"):
        (store.work / name).mkdir(parents=True)
        (store.work / name / name).touch()
    with store.writing():
        assert [path.name for path in store.changes.rglob("*")] == ["date=2026-01-02", "compacted-date=2026-01-02"]
        assert [path.name for path in store.work.iterdir()] == ["lock"]


def test_a_day_is_whole_when_each_of_its_batches_has_a_summary(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    batch = begun(store, store.run())
    batch.changes.mkdir(parents=True)
    day = store.changes / "date=2026-01-02"
    assert not store.is_whole(day)
    batch.summary.touch()
    assert store.is_whole(day)


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


def test_a_folder_in_which_a_full_disk_ended_the_first_step_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = tmp_path / "faults"
    monkeypatch.setattr(disk, "FAILPOINTS", Failpoints(faults))
    faults.write_text("half write * = ENOSPC\n")
    with pytest.raises(StoreError, match="log cannot be written to: No space left on device"):
        RouteStore.create(tmp_path / "log")
    faults.unlink()

    RouteStore.create(tmp_path / "log")
    RouteStore.open(tmp_path / "log")


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


def test_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "route_pipeline.json").write_text(json.dumps({"layout_version": 1}))

    with pytest.raises(StoreError, match="has layout version 1"):
        RouteStore.open(tmp_path)


def test_a_store_without_an_ingest_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no ingest yet"):
        RouteStore.create(tmp_path).check_not_empty()


def test_a_store_from_which_a_day_is_missing_at_this_moment_is_not_read(tmp_path: Path) -> None:
    store = RouteStore.create(tmp_path)
    begun(store, store.run()).summary.touch()
    store.check_not_empty()
    (store.work / "old-date=2026-01-02").mkdir(parents=True)

    with pytest.raises(StoreError, match="date=2026-01-02 is being compacted, or that was killed"):
        store.check_not_empty()
    with store.writing():
        store.check_not_empty()


@pytest.mark.parametrize(("name", "problem"), [("s3a://bucket/routes", "is a URL"), ("/data/[new]", "a pattern")])
def test_a_name_that_spark_would_misread_is_refused(name: str, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        RouteStore.create(Path(name))
