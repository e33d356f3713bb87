"""The benchmark of the agent's fan-out runs, and reports what readers look for. No figure is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import fan_out

pytestmark = pytest.mark.slow


def test_the_fan_out_benchmark_reports_both_times_and_their_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fan_out.json"
    fan_out.main(["--rounds", "1", "--topics", "10", "--json", str(file)])
    report = json.loads(file.read_text())
    found = {(figure["workload"], figure["name"]) for figure in report["figures"]}
    assert found == {
        (fleet, time) for fleet in (fan_out.ALONE, fan_out.WITH_BAD) for time in (fan_out.ACCEPTED, fan_out.ROUND)
    }
    assert report["ratio"] > 0
    assert "\nratio: " in capsys.readouterr().out
