"""A process that is killed while it writes its durable files loses nothing that it has called durable.

Run as a program, this is that process: it saves one content after the other and prints each that is durable.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog

from namesrv.core.model import HoldKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.storage.intents_file import IntentsFile
from namesrv.storage.kv_config_file import KvConfigFile
from namesrv.storage.snapshot_file import SnapshotFile

pytestmark = pytest.mark.slow

ROUNDS = 20
MOST_SECONDS = 80.0
"""After this time no further round is begun."""
LINES = 40
"""A process is killed at the latest soon after so many contents are durable."""
PAUSE_SECONDS = 0.01
"""How long after a line it is killed at most: about as long as a save takes."""
REPOSITORY = Path(__file__).parents[4]


def save_kv_config(folder: Path, number: int) -> None:
    entries = {f"key-{key}": f"{number}" for key in range(300)}
    KvConfigFile(folder).save(KvConfigTable.of({"ns": entries}))


def load_kv_config(folder: Path) -> set[int]:
    return {int(value) for value in KvConfigFile(folder).load().entries("ns").values()}


def save_intents(folder: Path, number: int) -> None:
    holds = (Intent(IntentKind.TOPIC_HOLD, HoldKey(f"topic-{topic}", None), "ops", number) for topic in range(100))
    IntentsFile(folder).save(IntentTable.of(holds))


def load_intents(folder: Path) -> set[int]:
    return {intent.since_millis for intent in IntentsFile(folder).load().intents.values()}


def save_snapshot(folder: Path, number: int) -> None:
    with SnapshotFile(folder).open_writer() as writer:
        for _ in range(4):
            writer.append(f"{number}".encode().rjust(50_000))
        writer.commit()


def load_snapshot(folder: Path) -> set[int]:
    return {int(message) for message in SnapshotFile(folder).load() or []}


class Durable(NamedTuple):
    """One of the files under test."""

    save: Callable[[Path, int], None]
    load: Callable[[Path], set[int]]
    """The numbers of which the file holds content; more than one would be a mixture."""


FILES = {
    "kv-config": Durable(save_kv_config, load_kv_config),
    "intents": Durable(save_intents, load_intents),
    "snapshot": Durable(save_snapshot, load_snapshot),
}


def save_until_killed(folder: Path) -> None:
    """Goes on from what the files hold; the number of a content is one more than that of the content before."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    starts = {name: max(file.load(folder), default=0) for name, file in FILES.items()}
    for step in itertools.count(1):
        for name, file in FILES.items():
            file.save(folder, starts[name] + step)
            os.write(sys.stdout.fileno(), f"{name} {starts[name] + step}\n".encode())


def run_and_kill(folder: Path, lines: int, pause_seconds: float) -> dict[str, int]:
    """Kills a process a moment after it has printed so many lines. Returns the last number of each file it printed."""
    program = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(30, process.kill)
        watchdog.start()
        try:
            printed = list(itertools.islice(process.stdout, lines))
            assert len(printed) == lines, "it ended by itself, or did not get on"
            threading.Event().wait(pause_seconds)  # so that it is killed in any part of a save
        finally:
            process.kill()
            watchdog.cancel()
        printed += process.stdout
    return {name: int(number) for name, number in (line.split() for line in printed)}


def test_a_kill_at_any_moment_loses_nothing_that_was_called_durable(tmp_path: Path) -> None:
    chance = random.Random(1)
    durable = dict.fromkeys(FILES, 0)
    deadline = time.monotonic() + MOST_SECONDS
    for _ in range(ROUNDS):
        if time.monotonic() > deadline:
            break
        durable.update(run_and_kill(tmp_path, chance.randint(1, LINES), chance.uniform(0, PAUSE_SECONDS)))
        for name, file in FILES.items():
            held = file.load(tmp_path) or {0}
            assert len(held) == 1, f"{name} is a mixture of {held}"
            assert held <= {durable[name], durable[name] + 1}, name
            durable[name] = held.pop()
    broken = [file.name for file in tmp_path.iterdir() if file.name.endswith(".broken")]
    assert broken == [], "a kill leaves an old content or a new one, and no file that has to be put aside"


if __name__ == "__main__":
    save_until_killed(Path(sys.argv[1]))
