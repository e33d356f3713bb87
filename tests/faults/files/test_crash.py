"""A crash at each step on each file: it holds the old content or the new one, and what was called durable is there."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.owned_files import CRASHED, FAILPOINTS, OWNED, leave_kv_config_of_rocketmq
from tests.support import failpoints
from tests.support.programs.processes import Process

ROOT = Path(__file__).parents[3]

RUNS = int(os.environ.get("FAULTS_CRASHES_PER_POINT", "2"))
"""How often a process is crashed at each point; 100 in the long profile."""
MOST_ROUNDS = 5
"""Rounds of steps within which each point is passed."""
WITH_COPY = "topics.json"
"""The file that keeps what it held before as ``<name>.bak``."""
LONG_NAME = 40
"""Characters that only names of temporary files of the route cache have."""


class Sliced(Process):
    """Takes rounds of steps in a folder, with faults. Remembers what was called durable."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.faults = scratch / "faults"
        command = [sys.executable, "-m", "tests.faults.owned_files"]
        super().__init__(command, failpoints.environment(self.faults), folder=ROOT, pipes=True)
        self._folders = 0
        self.new_folder()

    def new_folder(self) -> None:
        """From now on steps are taken in a folder in which there is nothing yet."""
        self._folders += 1
        self.folder = self._scratch / f"folder-{self._folders}"
        self.folder.mkdir()
        leave_kv_config_of_rocketmq(self.folder)
        self.durable = dict.fromkeys(OWNED, 0)

    def take(self, faults: str = "") -> int:
        """Takes a round of steps in a process of its own, and returns its exit code."""
        self.faults.write_text(faults)
        folders, told = self.pipes
        folders.write(f"{self.folder}\n")
        folders.flush()
        for line in told:
            if line.startswith("ended "):
                return int(line.split()[1])
            kind, number = line.rsplit(": ", 1)
            assert self.durable[kind] < int(number) <= self.durable[kind] + 2, f"{kind}: {number}"
            self.durable[kind] = int(number)
        raise AssertionError(f"the program ended: {self.raw}")

    def damage(self) -> None:
        """Makes the file unreadable that has a copy; then what it held before is the last that can be there."""
        if (self.folder / f"{WITH_COPY}.bak").exists() and (self.folder / WITH_COPY).exists():
            (self.folder / WITH_COPY).write_bytes(b"\0")
            self.durable[WITH_COPY] -= 1

    def points(self) -> set[str]:
        """The points that were passed so far."""
        lines = self.faults.with_name("faults.hits").read_text().splitlines()
        return {_name(line) for line in lines}

    def crash_at(self, point: str) -> None:
        """Has a process crash at a point, and checks that the next one finds everything."""
        if "namesrv.db" in point and not point.endswith(" namesrv.db-wal"):
            self.new_folder()  # most of these are passed when the database is made
        for _ in range(MOST_ROUNDS):
            if ".broken" in point:
                self.damage()
            code = self.take(f"{_pattern(point)} = crash\n")
            if code == CRASHED:
                break
            assert code == 0, self.raw
        else:
            raise AssertionError(f"{point} was never passed")
        assert self.take() == 0, f"after a crash {point}: {self.raw}"


def _name(point: str) -> str:
    """Files of the route cache are named by a checksum, the temporary ones by chance."""
    words = point.split(" ")
    if words[-1].endswith(".route") or (words[-1].endswith(".tmp") and len(words[-1]) > LONG_NAME):
        words[-1] = f"ROUTE.{words[-1].rpartition('.')[2]}"
    return " ".join(words)


def _pattern(point: str) -> str:
    return point.replace("ROUTE.tmp", f"{'?' * LONG_NAME}*").replace("ROUTE.", "*.")


@pytest.fixture
def steps() -> Iterator[Sliced]:
    """In memory where that can be: a process that is killed leaves in the page cache what it wrote."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as scratch, Sliced(Path(scratch)) as steps:
        yield steps


def test_the_list_of_failpoints_is_complete(steps: Sliced) -> None:
    for _ in range(MOST_ROUNDS):
        assert steps.take() == 0, steps.raw
    steps.damage()
    assert steps.take() == 0, steps.raw
    assert steps.points() == set(FAILPOINTS)


@pytest.mark.timeout(120 * max(1, RUNS / 2))
def test_a_crash_anywhere_leaves_old_or_new_and_loses_nothing_durable(steps: Sliced) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    points = FAILPOINTS.copy()
    for _ in range(RUNS):
        rng.shuffle(points)
        for point in points:
            if rng.random() < 0.3:
                steps.new_folder()
            steps.crash_at(point)
