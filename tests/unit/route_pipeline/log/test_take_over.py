"""Logs of the old layout, taken over."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.failpoints import VARIABLE
from route_pipeline.log.compaction import compact
from route_pipeline.log.old_layout.take_over import take_over
from route_pipeline.log.protocol.route_log import MARKER, RouteLog
from route_pipeline.log.protocol.writer import LogWriter
from route_pipeline.stores.store import StoreError
from tests.unit.route_pipeline.log.old_log import OFFSET, RUN, old_log
from tests.unit.route_pipeline.log.rows import append, revisions_of

_RANDOM = re.compile(r"\.[0-9a-f]{8}\.part$")
_PROGRAM = "import sys; from route_pipeline.log.old_layout.take_over import take_over; take_over(sys.argv[1])"


def run(root: Path, faults: str) -> tuple[int, list[str]]:
    """Takes a log over in a process of its own; its exit code, and the points that it came to."""
    file = root.with_name(f"{root.name}.faults")
    file.write_text(faults)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, root], env={**os.environ, VARIABLE: str(file)}, check=False, timeout=60
    )
    return done.returncode, file.with_name(f"{file.name}.hits").read_text().splitlines()


def test_whole_batches_and_the_position_are_taken_over_and_an_ingest_goes_on(tmp_path: Path) -> None:
    log = take_over(old_log(tmp_path / "log"))

    state = log.state()
    assert revisions_of(log) == [1, 2, 3, 4], "the batch without a summary is read again"
    assert (state.run, state.batch, state.position) == (RUN, 1, OFFSET)
    assert state.known["ns-a"].revision == 4
    assert {file.date for file in state.files.values()} == {"2026-01-01", "2026-01-02"}
    assert len([summary for commit in log.commits_after(0, 4) for summary in commit.summaries]) == 2
    append(LogWriter(log), 5)
    assert compact(log).days == ("2026-01-02",)
    assert revisions_of(log) == [1, 2, 3, 4, 5]
    assert take_over(tmp_path / "log").id == log.id, "a second time changes nothing"


@pytest.mark.slow
def test_killed_at_any_step_it_is_the_old_log_or_the_new_one_and_can_be_begun_again(tmp_path: Path) -> None:
    code, points = run(old_log(tmp_path / "whole"), "")
    assert code == 0
    kinds = set()
    for number, point in enumerate(dict.fromkeys(points)):
        root = old_log(tmp_path / str(number))
        # The middle of a file's name is random, and a pattern has no equals sign.
        code, _ = run(root, f"{_RANDOM.sub('.*.part', point).replace('=', '?')} = crash\n")
        assert code == -signal.SIGKILL, point
        kinds.add(json.loads((root / MARKER).read_text())["layout_version"])
        log = take_over(root)
        assert revisions_of(log) == [1, 2, 3, 4], point
        assert log.state().number == 1
    assert kinds == {2, 3}


def test_an_old_program_refuses_the_new_log(tmp_path: Path) -> None:
    take_over(old_log(tmp_path / "log"))
    assert json.loads((tmp_path / "log" / MARKER).read_text())["layout_version"] == 3


def test_a_log_that_an_old_program_writes_to_is_left_alone(tmp_path: Path) -> None:
    root = old_log(tmp_path / "log")
    with (root / "_work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another ingest or compaction is writing to"):
            take_over(root)
    assert not (root / "_commits").exists()


def test_without_sparks_notes_the_next_ingest_begins_with_a_snapshot(tmp_path: Path) -> None:
    root = old_log(tmp_path / "log")
    (root / "_checkpoint" / RUN / "offsets" / "1").unlink()
    log = take_over(root)
    assert log.state().position is None
    assert revisions_of(log) == [1, 2, 3, 4]


def test_a_compaction_of_the_old_version_that_was_killed_is_ended_first(tmp_path: Path) -> None:
    root = old_log(tmp_path / "log")
    day = root / "changes" / "date=2026-01-01"
    day.rename(root / "_work" / "old-date=2026-01-01")
    assert revisions_of(take_over(root)) == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["s3://bucket/log", "none", "other"])
def test_what_is_no_old_log_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(StoreError):
        take_over(place if place.startswith("s3") else tmp_path / place)


def test_a_damaged_file_is_named_and_nothing_changes(tmp_path: Path) -> None:
    root = old_log(tmp_path / "log")
    (root / "changes" / "date=2026-01-01" / "run=compacted" / "batch_id=0" / "part-0.parquet").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"part-0\.parquet is damaged"):
        take_over(root)
    assert json.loads((root / MARKER).read_text()) == {"layout_version": 2}


def test_a_new_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = RouteLog.create(tmp_path / "log")
    append(LogWriter(log), 1)
    assert revisions_of(take_over(tmp_path / "log")) == [1]
