"""The benchmark of the tables, with tiny ones: each round is a process of its own. No figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.core import __main__ as core


def test_the_core_benchmark_reports_every_figure_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "core.json"
    core.main(["--topics", "50", "--rounds", "2", "--json", str(file)])
    report: dict[str, Any] = json.loads(file.read_text())
    assert report["machine"].keys() >= {"date", "cpu", "cores", "python", "packages", "commit", "seed"}
    figures = {(figure["workload"], figure["name"]): figure for figure in report["figures"]}
    assert figures.keys() >= {
        ("full registration of 50 topics", "first"),
        ("full registration of 50 topics", "unchanged"),
        ("full registration of 50 topics", "all topics changed"),
        ("one registration of 50 topics, changed", "longest commit"),
        ("one static topic of 50 queues, moved", "longest commit"),
        ("expiry of 2 of 20 brokers", "all together"),
        ("50 topics x 10 brokers x width 2", "one lookup, mean"),
        ("50 topics x 10 brokers x width 2", "lookups per second"),
        *(
            ("50 topics x 10 brokers x width 2", f"{what}, {figure}")
            for what in ("loading it", "replacing all of it")
            for figure in (
                "all together",
                "longest commit",
                "resident memory that it takes",
                "longest garbage collection",
                "young garbage collections",
                "middle garbage collections",
                "full garbage collections",
            )
        ),
        ("50 topics x 10 brokers x width 2", "taking a snapshot"),
        ("50 topics x 10 brokers x width 2", "its messages, longest of them"),
        ("50 topics x 10 brokers x width 2", "letting a replaced snapshot go, longest step"),
        ("50 topics x 10 brokers x width 2", "ending 3 watches of 50 topics, longest step"),
        ("50 topics x 10 brokers x width 2", "full garbage collection after gc.freeze()"),
    }
    assert all(len(figure["values"]) == 2 for figure in report["figures"])
    assert all(min(figure["values"]) >= 0 for figure in report["figures"] if figure["unit"] != "MiB")
    shown = capsys.readouterr()
    assert all(name in shown.out for _, name in figures)
    assert "round 2 of 2" in shown.err


def test_the_core_benchmark_measures_a_table_of_any_size_alone(capsys: pytest.CaptureFixture[str]) -> None:
    core.main(["--topics", "50", "--rounds", "1", "--tables", "40x20x4"])
    shown = capsys.readouterr().out
    assert "40 topics x 20 brokers x width 4" in shown
    assert "full registration" not in shown
