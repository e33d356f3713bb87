"""A compaction's exchange of days, killed before and after each of its steps; files stand for rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from groundwork.files.failpoints import VARIABLE
from route_pipeline.log.day_swap import finish_replacing, missing_day, replace_days, staged_day

DAYS = ["date=2026-01-02", "date=2026-01-03", "date=2026-01-04"]
OTHER = "date=2026-01-05"
BY_EXCHANGE = ""
BY_TWO_RENAMES = "before exchange * = ENOSYS\n"
"""As on a file system that cannot exchange two names."""

_PROGRAM = """
import sys
from pathlib import Path
from route_pipeline.log.day_swap import replace_days
replace_days(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
"""


@dataclass
class Log:
    """Days of a log, and what was made of them."""

    folder: Path
    days: list[str]

    def __post_init__(self) -> None:
        self.changes, self.work = self.folder / "changes", self.folder / "_work"
        for day in (*DAYS, OTHER):
            write(self.changes / day, "old")
        write(staged_day(self.work, self.days[-1]), "new")

    def told(self) -> set[tuple[str, ...]]:
        """The rows that a reader finds."""
        return {path.relative_to(self.changes).parts for path in self.changes.rglob("*.parquet")}

    @property
    def before(self) -> set[tuple[str, ...]]:
        return {(day, "run=old", "part.parquet") for day in (*DAYS, OTHER)}

    @property
    def after(self) -> set[tuple[str, ...]]:
        others = {row for row in self.before if row[0] not in self.days}
        return others | {(self.days[-1], "run=new", "part.parquet")}

    def replace(self, faults: str) -> tuple[int, list[str]]:
        """Replaces the days in a process of its own; its exit code, and the points that it came to."""
        file = self.folder / "faults"
        file.write_text(faults)
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, self.changes, self.work, *self.days],
            env={**os.environ, VARIABLE: str(file)},
            check=False,
            timeout=60,
        )
        return done.returncode, (self.folder / "faults.hits").read_text().splitlines()


def write(day: Path, run: str) -> None:
    (day / f"run={run}").mkdir(parents=True)
    (day / f"run={run}" / "part.parquet").touch()


@pytest.mark.parametrize("days", [DAYS[1:2], DAYS])
@pytest.mark.parametrize("way", [BY_EXCHANGE, BY_TWO_RENAMES])
def test_killed_at_any_step_each_day_is_the_old_or_the_new_one_and_the_next_writer_ends_it(
    tmp_path: Path, way: str, days: list[str]
) -> None:
    whole = Log(tmp_path / "whole", days)
    code, points = whole.replace(way)
    assert (code, whole.told()) == (0, whole.after)
    outcomes = set()
    for number, point in enumerate(points):
        log = Log(tmp_path / str(number), days)
        # A pattern has no equals sign.
        code, _ = log.replace(f"{point.replace('=', '?')} = crash\n{way}")
        assert code == -signal.SIGKILL, point
        missing = missing_day(log.changes, log.work)
        if way == BY_EXCHANGE:
            assert missing is None
        if missing is None:
            assert log.told() in (log.before, log.after) or log.told() > log.after, point

        finish_replacing(log.changes, log.work)

        outcomes.add(log.told() == log.after)
        assert log.told() in (log.before, log.after), point
        assert missing_day(log.changes, log.work) is None
        assert list(log.work.iterdir()) == []
    assert outcomes == {True, False}


def test_a_moment_without_a_day_is_told(tmp_path: Path) -> None:
    log = Log(tmp_path, DAYS[1:2])
    assert missing_day(log.changes, log.work) is None
    code, _ = log.replace(f"after rename old-date* = crash\n{BY_TWO_RENAMES}")
    assert code == -signal.SIGKILL
    assert missing_day(log.changes, log.work) == DAYS[1]


def test_a_disk_that_fails_before_the_exchange_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, DAYS)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("groundwork.files.disk.exchange", fail)
    with pytest.raises(OSError, match="Input/output error"):
        replace_days(log.changes, log.work, log.days)
    assert log.told() == log.before
