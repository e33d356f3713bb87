"""A process that is killed at any moment while it uses a database loses nothing that it called durable.

Run as a program, this is the parent of those processes: it has imported everything, and forks one for each kill. A
process opens the database, says what it holds, changes all tables and the journal, closes the database and begins
again. It says each change that it tries and each that is durable. The parent compares.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from namesrv.storage.database import Database
from namesrv.storage.journal import Journal
from namesrv.storage.tables import TABLES
from tests.faults.owned_files import (
    CONTENTS,
    entries_of,
    journal_change,
    last_revisions,
    leave_kv_config_of_rocketmq,
    number_of,
)
from tests.support.failpoints import sqlite

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("FAULTS_DATABASE_KILLS", "60"))
SECONDS = 60.0 + KILLS / 4
"""How long they may take on a busy machine."""

MOST_CHANGES = 60
"""Changes between two openings: some are checkpoints, too, which SQLite makes every 1,000 pages."""
MOST_STEPS = 400
"""A process that is killed at a step of SQLite on its files makes so many before, at most."""
LONGEST_LIFE_SECONDS = 0.15
NEW_FOLDER = 0.05
"""Share of the lives that begin without a database."""
MOST_ENTRIES = 300
"""Of the journal, which is trimmed all the time."""


# A life, which ends with a kill.


def live(folder: Path, say: Callable[[dict[str, Any]], None]) -> None:
    """Opens the database again and again."""
    while True:
        database = Database(folder)
        numbers = {table.name: number_of(database, table) for table in TABLES}
        entries = entries_of(database)
        say({"held": numbers, "journal": last_revisions(entries), "entries": len(entries)})
        epoch = database.next_epoch(0)
        say({"epoch": epoch})
        asyncio.run(_serve(database, epoch, numbers, say))
        say({"closed": epoch})


async def _serve(
    database: Database, epoch: str, numbers: dict[str, int], say: Callable[[dict[str, Any]], None]
) -> None:
    journal = Journal(database, epoch, 1_000_000, max_entries=MOST_ENTRIES)
    revisions = itertools.count(1)

    async def register() -> None:
        while True:
            journal.on_change(journal_change(next(revisions)))
            await asyncio.sleep(0.0003)

    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(register()),
            tasks.create_task(journal.keep_writing(lambda seconds: asyncio.sleep(seconds / 50))),
        ]
        for _ in range(random.randint(1, MOST_CHANGES)):
            table = random.choice(TABLES)
            number = numbers[table.name] = numbers[table.name] + 1
            say({"tries": table.name, "number": number})
            await database.replace(table, CONTENTS[table.name](number))
            say({"made": table.name, "number": number})
        for task in background:
            task.cancel()
    await journal.write_last()
    say({"journal_is_durable": next(revisions) - 1})
    await database.close(10)


# The parent, which checks.


class Told:
    """What the processes said of one folder."""

    def __init__(self) -> None:
        self.made = {table.name: 0 for table in TABLES}
        self.tried = dict(self.made)
        """The last number that was tried: it may be there or not."""
        self._epochs: list[str] = []
        self._journal: dict[str, int] = {}
        """The last revision of each epoch that is over."""
        self._durable_revision = 0
        """Of the last epoch."""

    def hear(self, line: dict[str, Any]) -> None:
        """Checks a line. AssertionError if it contradicts the lines before."""
        match line:
            case {"held": numbers, "journal": journal, "entries": entries}:
                self._check_held(numbers)
                self._check_journal(journal, entries)
            case {"epoch": epoch}:
                assert all(before < epoch for before in self._epochs), f"{epoch} after {self._epochs[-1:]}"
                self._epochs.append(epoch)
                self._durable_revision = 0
            case {"tries": name, "number": number}:
                self.tried[name] = number
            case {"made": name, "number": number}:
                self.made[name] = number
            case {"journal_is_durable": revision}:
                self._durable_revision = revision
            case _:
                assert line.keys() == {"closed"}

    def _check_held(self, numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            allowed = {self.made[name], self.tried[name]}
            assert number in allowed, f"{name} holds {number}, not one of {allowed}"
        more = [name for name, number in numbers.items() if number != self.made[name]]
        assert len(more) <= 1, f"more than the change under way was made: {more}"
        self.made, self.tried = dict(numbers), dict(numbers)

    def _check_journal(self, journal: dict[str, int], entries: int) -> None:
        """Entries of epochs that are over stay as they are, until the oldest go."""
        assert entries <= MOST_ENTRIES
        last = self._epochs[-1] if self._epochs else ""
        reached = self._journal.setdefault(last, journal.get(last, 0))
        assert reached >= self._durable_revision, f"{last} has lost entries"
        kept = {epoch: revision for epoch, revision in self._journal.items() if epoch >= min(journal, default="")}
        assert journal == {epoch: revision for epoch, revision in kept.items() if revision}


def _say(to: int, line: dict[str, Any]) -> None:
    os.write(to, f"{json.dumps(line)}\n".encode())


def _begin(folder: Path, kill_at_step: int) -> tuple[int, int]:
    """Forks a process. Returns its id and what it says."""
    heard, said = os.pipe()
    child = os.fork()
    if child:
        os.close(said)
        return child, heard
    random.seed()
    steps = itertools.count(1)

    def hit(_point: str) -> None:
        if next(steps) == kill_at_step:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        if kill_at_step:
            sqlite.install(hit)
        live(folder, partial(_say, said))
    except BaseException:  # noqa: BLE001 - the boundary of a process
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _lines_until_killed(child: int, heard: int, kill_at: float) -> Iterator[dict[str, Any]]:
    """All that a process says; kills it at a time, by the monotonic clock."""
    rest, is_killed = b"", False
    while True:
        ready, _, _ = select.select([heard], [], [], None if is_killed else max(0.0, kill_at - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            is_killed = True
            continue
        content = os.read(heard, 65_536)
        if not content:
            return
        *whole, rest = (rest + content).split(b"\n")
        yield from map(json.loads, whole)


def kill_again_and_again(scratch: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Returns how often a process was killed after which of the lines that it says."""
    last_words: Counter[str] = Counter()
    for number in range(kills):
        if number == 0 or rng.random() < NEW_FOLDER:
            folder, told = scratch / f"{number}", Told()
            folder.mkdir()
            leave_kv_config_of_rocketmq(folder)
        by_step = rng.random() < 0.5
        child, heard = _begin(folder, rng.randint(1, MOST_STEPS) if by_step else 0)
        life = 10.0 if by_step else rng.uniform(0, LONGEST_LIFE_SECONDS)
        words = "nothing"
        try:
            for line in _lines_until_killed(child, heard, time.monotonic() + life):
                told.hear(line)
                words = next(iter(line))
        finally:
            os.kill(child, signal.SIGKILL)
            os.close(heard)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL, f"kill {number}: ended with {code}"
        last_words[words] += 1
    return last_words


def main() -> None:
    """Kills as often as the first argument says. The second one is a seed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    kills, seed = int(sys.argv[1]), int(sys.argv[2])
    fast = Path("/dev/shm")  # what a killed process wrote stays in the page cache, so a disk would change nothing
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as scratch:
        last_words = kill_again_and_again(Path(scratch), kills, random.Random(seed))
    print(f"{kills} kills in {time.monotonic() - begun:.0f} s; their last words: {dict(last_words.most_common())}")


@pytest.mark.timeout(SECONDS + 10)
def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged() -> None:
    seed = random.randrange(2**32)
    program = [sys.executable, "-m", __name__, str(KILLS), str(seed)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr[-5_000:]}"


if __name__ == "__main__":
    main()
