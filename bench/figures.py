"""Figures of several rounds, the machine they were measured on, and how both are shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bench.workload import SEED

_PACKAGES = ("grpcio", "protobuf", "namesrv-engine", "uvloop")
_SIGNIFICANT_DIGITS = 3
_STDOUT, _STDERR = 1, 2


class Sample(NamedTuple):
    """One figure of one round."""

    workload: str
    name: str
    unit: str
    value: float


class Figure(NamedTuple):
    """One figure of all rounds."""

    workload: str
    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)


def summarise(samples: Iterable[Sample]) -> list[Figure]:
    """Puts the rounds of each figure together, in the order in which the figures came first."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for workload, name, unit, value in samples:
        values.setdefault((workload, name, unit), []).append(value)
    return [Figure(*key, tuple(rounds)) for key, rounds in values.items()]


def table(figures: Iterable[Figure]) -> str:
    """The figures as one aligned table, a heading for each workload."""
    figures = list(figures)
    rows = [(figure.name, shown(figure.median), _spread(figure.values), figure.unit) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    widths[1] = max(widths[1], len("median"))
    widths[2] = max(widths[2], len("min..max"))
    lines = [f"  {'figure':{widths[0]}}  {'median':>{widths[1]}}  {'min..max':>{widths[2]}}  unit"]
    workload = ""
    for figure, (name, median, spread, unit) in zip(figures, rows, strict=True):
        if figure.workload != workload:
            workload = figure.workload
            lines.append(workload)
        lines.append(f"  {name:{widths[0]}}  {median:>{widths[1]}}  {spread:>{widths[2]}}  {unit}")
    return "\n".join(lines)


def shown(value: float) -> str:
    """A number with three significant digits; a large one in full."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{_SIGNIFICANT_DIGITS}g}"


def write_json(path: Path, figures: Iterable[Figure], **facts: Any) -> None:
    """Writes every value of every round, with the facts of the machine."""
    rows = [{**figure._asdict(), "median": figure.median} for figure in figures]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **facts, "figures": rows}, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What a reader needs to know to compare figures."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
        "commit": _commit(),
        "seed": SEED,
    }


def machine_line() -> str:
    """The same in a line, to print above a table."""
    facts = machine()
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    return (
        f"{facts['date']}: {facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, {packages}, "
        f"commit {facts['commit']}, seed {facts['seed']}"
    )


def own_output() -> TextIO:
    """Standard output for this process alone: what Java, which it starts, prints there goes to standard error."""
    mine = os.fdopen(os.dup(_STDOUT), "w", buffering=1)
    os.dup2(_STDERR, _STDOUT)
    return mine


def progress(text: str) -> None:
    """Says on standard error what is going on; standard output is for the table."""
    print(text, file=sys.stderr, flush=True)


def _spread(values: tuple[float, ...]) -> str:
    return f"{shown(min(values))}..{shown(max(values))}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, with a plus sign if the files differ from it."""
    root = Path(__file__).parent.parent
    try:
        commit = subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, text=True, stderr=subprocess.DEVNULL
        )
        changed = subprocess.check_output(["git", "status", "--porcelain", "namesrv", "engine"], cwd=root, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + "+" * bool(changed)
