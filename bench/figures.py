"""Figures of several rounds, the machine they were measured on, and how both are shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("grpcio", "protobuf", "namesrv-engine", "uvloop")


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
    """Joins the rounds of each figure, in the order in which the figures first appeared."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for workload, name, unit, value in samples:
        values.setdefault((workload, name, unit), []).append(value)
    return [Figure(*key, tuple(rounds)) for key, rounds in values.items()]


def table(figures: Iterable[Figure]) -> str:
    """The figures as one aligned table, a heading for each workload."""
    lines, workload = [f"{'figure':<58} {'median':>12}  min..max"], ""
    for figure in figures:
        if figure.workload != workload:
            lines.append(workload := figure.workload)
        spread = f"{shown(min(figure.values))}..{shown(max(figure.values))}"
        lines.append(f"  {figure.name:<56} {shown(figure.median):>12}  {spread} {figure.unit}")
    return "\n".join(lines)


def shown(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if abs(value) >= 100 else f"{float(digits):.12g}"


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have. From now on, the program ends its servers when it is asked to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    options = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=(doc or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options.add_argument("--json", type=Path, help="file for every value of every round")
    options.add_argument("--smoke", action="store_true", help="one tiny round, to show that it runs")
    return options


def report(options: argparse.Namespace, figures: Sequence[Figure]) -> None:
    """Prints the table of figures, and writes the JSON file of an option."""
    print(json.dumps(machine()))
    print(table(figures))
    if options.json:
        rows = [{**figure._asdict(), "median": figure.median} for figure in figures]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What a reader needs to know to compare figures."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: _version_of(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def progress(text: str) -> None:
    """Writes to standard error what is measured; standard output is for the table."""
    print(text, file=sys.stderr, flush=True)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, with a plus sign if the files differ from it."""
    commands = (["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "namesrv", "engine"])
    try:
        commit, changed = (
            subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + "+" * bool(changed)
