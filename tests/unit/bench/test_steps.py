"""Steps of a measurement: those that come again are rounds of one line."""

from __future__ import annotations

from typing import Any

import pytest

from bench import steps
from bench.peers.measure import Measurement
from bench.report.results import Record
from bench.steps import Step, measure_steps, table_of

IDLE, STORM = (Step(name, "GetTopicRoute", ("native",), rounds=1) for name in ("storm-idle", "storm"))


def record(workload: str, p99: float) -> Record:
    kinds: dict[str, Any] = {"GetTopicRoute": {"calls": 1_000, "latency_ms": {"p99": p99}}}
    return {
        "workload": workload,
        "server": "native",
        "round": 1,
        "seconds": 2.0,
        "server_cpu_seconds": 0.05,
        "server_peak_memory_bytes": 2**27,
        "groups": {"clients": {"kinds": kinds}},
    }


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workloads that were measured; each takes a millisecond longer than the one before."""
    names: list[str] = []

    def measure(what: Measurement) -> list[Record]:
        names.append(what.workload.name)
        return [record(what.workload.name, float(len(names)))]

    monkeypatch.setattr(steps, "measure", measure)
    return names


def test_steps_that_take_turns_have_one_line_each_with_the_median_and_the_range(measured: list[str]) -> None:
    turns, records = 3 * (IDLE, STORM), list[Record]()
    measure_steps(turns, records, None, 1.0)
    assert measured == 3 * ["storm-idle", "storm"]
    assert [one["round"] for one in records] == [1, 1, 2, 2, 3, 3]
    lines = list(table_of(turns, records))[2:]
    assert [line.split(" | ")[:4] for line in lines] == [
        ["| storm-idle", "native", "500 (500 to 500)", "3 (1 to 5)"],
        ["| storm", "native", "500 (500 to 500)", "4 (2 to 6)"],
    ]


def test_a_trial_runs_each_step_once(measured: list[str]) -> None:
    measure_steps(3 * (IDLE, STORM), [], 0.1, 1.0)
    assert measured == ["storm-idle", "storm"]
