"""Breaks the code on purpose, and shows that the suite notices: ``python -m tests.faults.mutants``.

Each mutant is a copy of the project with one thing wrong, under the part of the suite that must fail on it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.faults.invariants import CHECKS

ROOT = Path(__file__).parents[2]
COPIED = ("broker_agent", "examples", "gen", "groundwork", "namesrv", "route_client", "tests")
LONGEST_SECONDS = 900.0
SHOWN_CHARACTERS = 200
INVARIANTS = [check.__name__.removeprefix("check_").replace("_", " ") for check in CHECKS]
MARKS = (*(f"{name}:" for name in INVARIANTS), "left over:", "E  ")
"""What lines begin with that say what was noticed."""


class Line(NamedTuple):
    """A line of the project, and what is wrong in its place."""

    file: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Mutant:
    """The project with one thing wrong: a line, or two where one guards against what the other lets through."""

    what: str
    lines: tuple[Line, ...]
    suite: tuple[str, ...]
    """Arguments of the part of the suite that must notice."""


def _runs(*faults: str) -> tuple[str, ...]:
    return ("-m", "tests.faults", "--rounds", "4", "--runs", "2", "--faults", *faults)


def _test(words: str, module: str = "single_faults") -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-x", f"tests/faults/test_{module}.py", "-k", words)


MUTANTS = (
    Mutant(
        "a name server that did not run itself blames the brokers",
        (
            Line(
                "namesrv/app/channels.py",
                "elif self._stall_detector.channel_ends_are_doubtful():",
                "elif False:",
            ),
        ),
        _test("blames"),
    ),
    Mutant(
        "it takes itself for warm at once",
        (Line("namesrv/core/warm_up.py", "        return self._is_warm\n", "        return True\n"),),
        _runs("kill-namesrv", "end-namesrv"),
    ),
    Mutant(
        "the end of a channel removes nobody",
        (
            Line(
                "namesrv/app/channels.py",
                "lost = [channel_id for channel_id in ended if not self._may_come_back(channel_id)]",
                "lost = [channel_id for channel_id in () if not self._may_come_back(channel_id)]",
            ),
        ),
        _runs("kill-agent"),
    ),
    Mutant(
        "the late end of an old channel removes a broker that has a new one",
        (
            Line(
                "namesrv/core/liveness.py",
                "            self._open[channel_id].discard(key)\n",
                "            pass\n",
            ),
            Line("namesrv/core/removals.py", "lambda live: live.channel_id in ended,", "lambda live: True,"),
        ),
        _test("late_end"),
    ),
    Mutant(
        "what an operator changes is not written to the disk",
        (Line("namesrv/storage/durable_file.py", "            self._save(content)\n", "            pass\n"),),
        _runs("kill-namesrv"),
    ),
    Mutant(
        "topics that a table no longer has stay",
        (
            Line(
                "namesrv/core/registrations.py",
                "        if exactly and registration.base_version is None:\n",
                "        if False:\n",
            ),
        ),
        _runs("reset"),
    ),
    Mutant(
        "a watch is not told of every other change of a topic",
        (
            Line(
                "namesrv/core/watch.py",
                "    def _mark(self, watch: RouteWatch, topic: str, gone: Gone) -> None:\n",
                "    def _mark(self, watch: RouteWatch, topic: str, gone: Gone) -> None:\n"
                '        """Wrong."""\n'
                "        if self.revision % 2:\n"
                "            return\n",
            ),
        ),
        _runs("reset"),
    ),
    Mutant(
        "the mass-loss guard never trips",
        (
            Line(
                "namesrv/core/mass_loss.py",
                "            lost >= behaviour.mass_loss_min_brokers\n",
                "            lost < 0\n",
            ),
        ),
        _test("guard"),
    ),
    Mutant(
        "a client believes every loss",
        (Line("route_client/cache.py", "    return all(any(_covers(", "    return True or all(any(_covers("),),
        _runs("kill-agent", "stop-all-agents"),
    ),
    Mutant(
        "an agent sends its first table for ever",
        (
            Line(
                "broker_agent/topics/storage.py",
                "        table = self.look()\n",
                "        table = None\n",
            ),
        ),
        _runs("reset"),
    ),
    Mutant(
        "a copy that is too old says that it can be relied on",
        (Line("namesrv/server/following.py", "        if behind > stale_seconds:\n", "        if False:\n"),),
        _test("copy", "runs"),
    ),
    Mutant(
        "a copy passes over the first row of each change",
        (
            Line(
                "namesrv/core/replica.py",
                "_put_rows(edit, change.rows)\n",
                "_put_rows(edit, change.rows[1:])\n",
            ),
        ),
        _test("copy", "runs"),
    ),
    Mutant(
        "the journal does not tell who left",
        (
            Line(
                "namesrv/grpc_api/admin.py",
                "gone = [row.reason for row in change.rows if isinstance(row, LiveRemoved)]",
                "gone = [row.reason for row in () if isinstance(row, LiveRemoved)]",
            ),
        ),
        _runs("kill-agent"),
    ),
    Mutant(
        "an agent answers before a change is in its file",
        (
            Line(
                "broker_agent/topics/manager.py",
                "            self._file.save(table)\n",
                "            __import__('threading').Timer(0.5, self._file.save, (table,)).start()\n",
            ),
        ),
        _test("acknowledged", "files_crash_agent"),
    ),
)


def noticed(mutant: Mutant, folder: Path) -> str:
    """How the suite noticed a mutant; empty if it did not."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for line in mutant.lines:
        source = folder / line.file
        text = source.read_text(encoding="utf-8")
        if text.count(line.right) != 1:
            raise ValueError(f"{line.file} has {text.count(line.right)} times, not once: {line.right!r}")
        source.write_text(text.replace(line.right, line.wrong), encoding="utf-8")
    path = os.pathsep.join([str(folder), str(folder / "gen")])
    done = subprocess.run(
        [sys.executable, *mutant.suite],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith(MARKS)]
    return " ".join(lines)[:SHOWN_CHARACTERS] if lines else (done.stdout + done.stderr)[-SHOWN_CHARACTERS:]


def main() -> int:
    """Tries all mutants, or those whose number is given; returns how many were not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="which, from 1; by default all")
    missed = 0
    for number in parser.parse_args().numbers or range(1, len(MUTANTS) + 1):
        mutant = MUTANTS[number - 1]
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            how = noticed(mutant, Path(folder))
        missed += not how
        sys.stdout.write(f"{number:2} {mutant.what}\n   {how or 'NOT NOTICED'}\n")
        sys.stdout.flush()
    return missed


if __name__ == "__main__":
    sys.exit(main())
