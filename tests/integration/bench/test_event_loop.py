"""The benchmark of the event loop runs, with tiny tables. No figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import event_loop

pytestmark = pytest.mark.slow

PHASES = (
    "loading 50 topics x 10 brokers x width 2",
    "lookups only",
    "one broker registers 50 topics, first",
    "one broker registers 50 topics, again, all changed",
    "its channel ends, and it leaves all routes",
    "2 brokers x 50 topics register all the time",
)
FIGURES = (
    "until the last answer",
    "event loop, longest delay",
    "event loop, p99 of its delay",
    "event loop, longest time on the processor",
    "longest garbage collection",
    "lookup latency, median",
    "lookup latency, p99",
)


def test_every_phase_is_reported_as_a_table_with_the_bar_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "event_loop.json"
    event_loop.main(["--topics", "50", "--rounds", "1", "--json", str(file)])
    report: dict[str, Any] = json.loads(file.read_text())
    figures = {(figure["workload"], figure["name"]): figure for figure in report["figures"]}
    expected = {(f"native: {phase}", name) for phase in PHASES for name in FIGURES}
    assert figures.keys() == expected | {(f"native: {PHASES[-1]}", "registrations per second")}
    assert all(len(figure["values"]) == 1 and figure["values"][0] >= 0 for figure in figures.values())
    shown = capsys.readouterr()
    for phase in PHASES:
        in_table, beside_bar = (line for line in shown.out.splitlines() if line.startswith(f"native: {phase}"))
        assert in_table == f"native: {phase}"
        assert "10 ms" in beside_bar
    assert "round 1 of 1" in shown.err
