"""The log: what its commits promise, on a folder and on an S3 server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from route_pipeline.log import files
from route_pipeline.log.protocol import commits, file_list
from route_pipeline.log.protocol import writer as writer_module
from route_pipeline.log.protocol.commits import CLEANING, COMPACTION, LogError
from route_pipeline.log.protocol.route_log import MARKER, RouteLog, commit_path
from route_pipeline.log.protocol.writer import (
    CHECKPOINT_EVERY,
    KEPT_CHECKPOINTS,
    ConflictError,
    LogWriter,
    ReplacedError,
)
from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.store import StoreError, StoreUnavailableError
from tests.support.fakes.passing_store import Died, DyingStore, PassingStore
from tests.support.routes.log_rows import append, revisions_of, write

OFTEN = 6


def test_a_batch_is_there_once_its_commit_is(place: str) -> None:
    writer = LogWriter(RouteLog.create(place))
    staged = write(writer.log.store, 1, 2)
    assert files(place) == []
    append(writer, 3, 4)

    (path,) = files(place)
    assert staged[0].path not in path
    state = RouteLog.open(place).state()
    assert (state.run, state.batch, state.position) == ("r1", 0, {"revision": 4})
    assert state.known["ns-a"].revision == 4
    (file,) = state.files.values()
    assert [(span.namesrv, span.epoch, span.first, span.last) for span in file.spans] == [("ns-a", "0001", 3, 4)]
    assert (file.rows, file.date) == (2, "2026-01-02")


def test_arrow_reads_the_files_by_their_names(tmp_path: Path) -> None:
    append(LogWriter(RouteLog.create(tmp_path / "log")), 1, 2, 3)
    assert ds.dataset(files(tmp_path / "log")).count_rows() == 3


@pytest.mark.timeout(600)
def test_died_at_any_step_of_a_batch_the_log_has_it_whole_or_not_at_all(place: str) -> None:
    outcomes = set()
    for moment in range(100):
        log = RouteLog.create(f"{place}/{moment}")
        append(LogWriter(log), 1)
        dying = RouteLog(DyingStore(log.store, dies_before=moment), log.id)
        try:
            append(LogWriter(dying), 2, 3)
        except Died:
            pass
        else:
            break
        found = revisions_of(log)
        outcomes.add(tuple(found))
        assert found in ([1], [1, 2, 3]), moment
        assert log.state().position == {"revision": found[-1]}
        if found == [1]:
            append(LogWriter(log), 2, 3)
        assert revisions_of(log) == [1, 2, 3]
    assert outcomes == {(1,), (1, 2, 3)}


def test_of_two_writers_of_batches_the_slower_one_ends_and_its_rows_are_not_in_the_log(place: str) -> None:
    log = RouteLog.create(place)
    stale, newer = LogWriter(log), LogWriter(log)
    append(newer, 1)
    with pytest.raises(ReplacedError, match=r"another ingest, on \S+, writes to .*: this one ends") as caught:
        append(stale, 1)
    assert "\n" not in str(caught.value)
    append(newer, 2)
    assert revisions_of(log) == [1, 2]


def test_a_writer_that_slept_is_replaced_for_good(place: str) -> None:
    log = RouteLog.create(place)
    sleeper = LogWriter(log)
    append(sleeper, 1)
    append(LogWriter(log), 2)
    for _ in range(2):
        with pytest.raises(ReplacedError):
            append(sleeper, 2)
    assert revisions_of(log) == [1, 2]
    assert log.state().epoch == 2


def test_a_commit_that_replaces_files_goes_between_batches_and_none_of_both_is_lost(place: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    append(writer, 1)
    append(writer, 2)
    other = LogWriter(log)
    other.append(COMPACTION, add=write(log.store, 1, 2), remove=list(other.state.files))
    append(writer, 3)
    assert revisions_of(log) == [1, 2, 3]


def test_of_two_that_replace_the_same_files_one_does(place: str) -> None:
    log = RouteLog.create(place)
    append(LogWriter(log), 1)
    first, second = LogWriter(log), LogWriter(log)
    old = list(first.state.files)
    first.append(COMPACTION, add=write(log.store, 1), remove=old)
    with pytest.raises(ConflictError, match="was replaced by another process meanwhile"):
        second.append(COMPACTION, add=write(log.store, 1), remove=old)
    assert revisions_of(log) == [1]


def test_a_file_that_a_task_wrote_elsewhere_is_missed_before_the_commit(place: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    append(writer, 1)
    gone = write(log.store, 2)
    log.store.delete(gone[0].path)
    with pytest.raises(StoreError, match="is it one place for all of Spark's machines"):
        writer.append(COMPACTION, add=gone)
    assert log.state().number == 1


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are made more often than in fact."""
    monkeypatch.setattr(writer_module, "CHECKPOINT_EVERY", OFTEN)


@pytest.mark.usefixtures("often")
def test_a_start_reads_a_checkpoint_and_few_commits(tmp_path: Path) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    many = OFTEN * (KEPT_CHECKPOINTS + 2) + 3
    for number in range(many):
        append(writer, number)
    assert len(log.store.files("_checkpoints")) == 2 * KEPT_CHECKPOINTS
    for number in range(1, many - OFTEN):
        log.store.delete(commit_path(number))  # nobody does: to show that they are not read

    state = log.state()

    assert (state.number, state.batch, len(state.files)) == (many, many - 1, many)
    assert state.known["ns-a"].revision == many - 1


@pytest.mark.parametrize("harm", ["cut", "gone"])
@pytest.mark.parametrize("suffix", [".json", ".parquet"])
@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_damaged_costs_time_and_nothing_else(tmp_path: Path, suffix: str, harm: str) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    for number in range(2 * OFTEN + 2):
        append(writer, number)
    newest = max(path for path in (tmp_path / "log" / "_checkpoints").iterdir() if path.suffix == suffix)
    if harm == "cut":
        newest.write_bytes(newest.read_bytes()[:-40])
    else:
        newest.unlink()
    found, expected = log.state(), writer.state
    assert (found.number, found.position, found.known) == (expected.number, expected.position, expected.known)
    assert found.files == expected.files


def long_log(place: str, batches: int) -> RouteLog:
    """A log as after so many batches: its newest checkpoint says so, and the commits before it were never made."""
    log = RouteLog.create(place)
    writer = LogWriter(log)
    append(writer, 1)
    paths = pa.array([f"data/2026-01-02/{number:032x}.parquet" for number in range(batches)])
    rows = writer.state.file_list.table().take(pa.repeat(0, batches)).set_column(0, file_list.SCHEMA.field(0), paths)
    writer.state.file_list.go_on_from(rows)
    writer.state.number = batches
    for number in range(3):
        append(writer, number)
    return log


def test_a_start_of_an_ingest_costs_the_store_as_much_after_100_000_batches_as_after_100(tmp_path: Path) -> None:
    cost: list[Counter[str]] = []
    for batches in (CHECKPOINT_EVERY, 100_000):
        log = long_log(str(tmp_path / str(batches)), batches)
        counting = PassingStore(log.store)
        append(LogWriter(RouteLog(counting, log.id)), 3)
        assert log.state().number == batches + 4
        cost.append(counting.done)
    few, many = cost
    assert {name: few[name] for name in few if name != "bytes"} == {n: many[n] for n in many if n != "bytes"}
    assert abs(few["bytes"] - many["bytes"]) < 100  # numbers of more digits
    assert RouteLog.open(tmp_path / "100000").state().file_list.table().num_rows == 100_004


@pytest.mark.usefixtures("often")
def test_removed_and_forgotten_files_are_known_after_a_checkpoint_as_before(tmp_path: Path) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    for number in range(OFTEN - 2):
        append(writer, number)
    first, second, third, *_ = writer.state.files
    writer.append(COMPACTION, add=write(log.store, 0, 1), remove=[first, second])
    writer.append(CLEANING, forget=[first])
    for number in range(2):  # the second makes the checkpoint
        append(writer, number)
    before = log.state()
    writer.append(COMPACTION, add=write(log.store, 2), remove=[third])
    writer.append(CLEANING, forget=[second])
    found = RouteLog.open(log.url).state()
    assert before.checkpoint == found.checkpoint == OFTEN
    assert (list(before.removed), list(found.removed)) == ([second], [third])
    assert found.files == writer.state.files
    assert found.removed == writer.state.removed


def rewrite(log: RouteLog, number: int, content: bytes) -> None:
    log.store.delete(commit_path(number))
    log.store.create(commit_path(number), content)


def edited(log: RouteLog, number: int, change: Callable[[dict[str, Any]], None], **header: Any) -> bytes:
    """A commit with another body, and a header that fits it."""
    body = commits.decode("", number, log.store.read(commit_path(number)))
    change(body)
    first, _, rest = commits.encode(number, body).partition(b"\n")
    return json.dumps(json.loads(first) | header).encode() + b"\n" + rest


DAMAGES: dict[str, tuple[Callable[[RouteLog, bytes], bytes], str]] = {
    "cut": (lambda _, content: content[:-10], "was cut or changed after it was written: its checksum"),
    "empty": (lambda _, content: content[:0], "was cut or changed after it was written: it cannot be read"),
    "edited": (lambda _, content: content.replace(b'"rows":2', b'"rows":3'), "its checksum is another one"),
    "renamed": (lambda log, _: log.store.read(commit_path(1)), "its checksum is another one"),
    "another program's": (lambda *_: b'{"format": "x", "version": 1}\n{}\n', "is no object of a route log"),
    "newer": (
        lambda log, _: edited(log, 2, lambda _: None, version=4),
        "version 4 of the format; this program knows 3",
    ),
    "another log's": (lambda log, _: edited(log, 2, lambda body: body.update(log="x")), "is of another log: two are"),
    "a field missing": (lambda log, _: edited(log, 2, lambda body: body.pop("at") and None), "field that is missing"),
    "adding twice": (
        lambda log, _: edited(log, 2, lambda body: body.update(add=[commits.file_to_json(first_file(log))])),
        "commit 2 adds .* again",
    ),
    "removing what is not there": (
        lambda log, _: edited(log, 2, lambda body: body.update(remove=["data/x"])),
        "commit 2 removes data/x, which is not there",
    ),
    "of a stale writer": (
        lambda log, _: edited(log, 2, lambda body: body["writer"].update(epoch=0)),
        "commit 2 is of a writer that had been replaced",
    ),
}


def first_file(log: RouteLog) -> commits.DataFile:
    (file,) = log.commits_after(0, 1)[0].add
    return file


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_commit_that_is_not_what_was_written_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    append(writer, 1, 2)
    append(writer, 3, 4)
    change, problem = DAMAGES[damage]
    rewrite(log, 2, change(log, log.store.read(commit_path(2))))
    before = log.store.files()

    for reads in (log.state, lambda: LogWriter(log), lambda: files(log.url)):
        with pytest.raises(LogError, match=problem) as caught:
            reads()
        assert "\n" not in str(caught.value)
    assert [file.path for file in log.store.files()] == [file.path for file in before]


def test_a_commit_that_is_missing_before_others_is_named(place: str) -> None:
    log = RouteLog.create(place)
    writer = LogWriter(log)
    for number in range(3):
        append(writer, number)
    log.store.delete(commit_path(2))
    with pytest.raises(LogError, match=r"00002\.json is missing, and later commits are there"):
        log.state()


def test_a_kind_of_commit_and_fields_that_are_not_known_are_kept_and_told(tmp_path: Path) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    append(writer, 1)
    append(writer, 2)

    def newer(body: dict[str, Any]) -> None:
        body.update(kind="vacuum", purpose="of tomorrow")
        body["add"][0]["colour"] = "blue"
        body["summaries"][0]["mood"] = "good"

    rewrite(log, 2, edited(log, 2, newer))
    state = log.state()
    assert (state.unknown_kinds, state.position, len(state.files)) == ({"vacuum"}, {"revision": 2}, 2)


def test_a_place_of_ours_is_taken_again(place: str) -> None:
    first = RouteLog.create(place)
    assert RouteLog.create(place).id == RouteLog.open(place).id == first.id


@pytest.mark.parametrize("open_log", [RouteLog.create, RouteLog.open])
def test_a_place_that_holds_something_else_is_refused_and_left_alone(
    tmp_path: Path, open_log: Callable[[Path], RouteLog]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds something else"):
        open_log(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_log_inside_another_is_refused(place: str) -> None:
    RouteLog.create(place)
    with pytest.raises(StoreError, match=r"data/2026 is inside the log .*some.log"):
        RouteLog.create(f"{place}/data/2026")


def test_a_file_or_nothing_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be (read|written to)"):
        RouteLog.create(tmp_path / "file")
    for name in ("file", "none"):
        with pytest.raises(StoreError, match="is not a folder"):
            RouteLog.open(tmp_path / name)


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"layout_version": 3}'])
def test_a_damaged_marker_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / MARKER).write_text(content)
    with pytest.raises(StoreError, match=r"route_pipeline\.json is damaged"):
        RouteLog.open(tmp_path)


def test_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(json.dumps({"layout_version": 4}))
    with pytest.raises(StoreError, match="has layout version 4; this program knows 3"):
        RouteLog.create(tmp_path)


def test_a_log_without_an_ingest_says_so(place: str) -> None:
    log = RouteLog.create(place)
    with pytest.raises(StoreError, match="has no ingest yet"):
        log.check_not_empty(log.state())


def test_a_batch_whose_answers_were_all_lost_is_found_by_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RouteLog.create(tmp_path / "log")
    writer = LogWriter(log)
    append(writer, 1)
    create = LocalStore.create

    def lose(store: LocalStore, path: str, content: bytes) -> bool:
        create(store, path, content)
        raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(LocalStore, "create", lose)
    with pytest.raises(StoreUnavailableError):
        append(writer, 2)
    monkeypatch.setattr(LocalStore, "create", create)

    writer.catch_up()

    assert writer.state.position == {"revision": 2}
    append(writer, 3)
    assert revisions_of(log) == [1, 2, 3]
