"""``figures.json``: every figure with its rounds, commit, machine, engine, command and date."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, machine

FILE = Path(__file__).parents[1] / "results" / "figures.json"


class Stored(NamedTuple):
    """One figure of all rounds, and how it was measured."""

    section: str
    workload: str
    name: str
    unit: str
    values: Sequence[float]
    """One of each round."""
    engine: str
    """The gRPC engine of the name server, or the program that was measured instead."""
    command: str
    commit: str
    machine: str
    date: str

    @property
    def figure(self) -> Figure:
        """The figure without its origin."""
        return Figure(self.workload, self.name, self.unit, tuple(self.values))


def stored(section: str, command: str, figures: Iterable[tuple[Figure, str]]) -> list[Stored]:
    """Adds the current commit, machine and date to figures. Each figure comes with its engine."""
    facts = machine()
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    place = f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}, {packages}"
    return [
        Stored(
            section, *figure, engine=engine, command=command, commit=facts["commit"], machine=place, date=facts["date"]
        )
        for figure, engine in figures
    ]


def read(file: Path = FILE) -> list[Stored]:
    """Reads all figures; none if there is no file."""
    return [Stored(**one) for one in json.loads(file.read_text())["figures"]] if file.exists() else []


def merge(file: Path, measured: Sequence[Stored]) -> None:
    """Replaces the figures of the measured sections in the file."""
    sections = {one.section for one in measured}
    kept = [one for one in read(file) if one.section not in sections]
    rows = ",\n".join(json.dumps(one._asdict()) for one in sorted([*kept, *measured], key=lambda one: one.section))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"figures": [\n{rows}\n]}}\n')
