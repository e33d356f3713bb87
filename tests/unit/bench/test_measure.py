"""Java is loaded until it is warm, and the workloads of a measurement alternate on the same processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest

from bench.peers import generator, measure
from bench.peers.calls import Remoting
from bench.peers.generator import Plan
from bench.peers.measure import Measurement
from bench.peers.workloads import Workload, all_workloads


class StoppedServer:
    """A server that is never called."""

    def __init__(self, name: str, _: str | None) -> None:
        self.name, self.protocol, self.language = name, "remoting", Remoting()
        self.target, self.tls_ca = "127.0.0.1:1", None

    def pids(self) -> list[int]:
        return []

    def settle(self) -> None:
        """Nothing to wait for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The runs of the load generator; each has as many answers per second as it is the n-th run, but at most four."""
    made: list[Plan] = []

    def run(plan: Plan, _: str | None, folder: Path) -> dict[str, Any]:
        assert folder.is_dir()
        made.append(plan)
        (group,) = plan.groups
        calls = {"calls": min(len(made), 4) * 100 * plan.seconds}
        groups = {group.name: {"kinds": {"GetTopicRoute": calls}}}
        return {"groups": groups, "seconds": plan.seconds, "server_cpu_seconds": plan.seconds / 2}

    monkeypatch.setattr(generator, "program", lambda: Path("load-generator"))
    monkeypatch.setattr(generator, "run", run)
    monkeypatch.setattr(measure, "Server", StoppedServer)
    return made


def workloads(*names: str) -> list[Workload]:
    known = {workload.name: workload for workload in all_workloads(0.002)}
    return [known[name] for name in names]


def test_java_is_loaded_until_two_rounds_agree(plans: list[Plan]) -> None:
    records = measure.measure(Measurement(workloads("lookups"), ["java"], rounds=2, seconds=1.0, warm_up_seconds=180.0))
    assert [plan.seconds for plan in plans] == [15.0] * 5 + [1.0] * 2
    assert [record["warm_up"] for record in records] == [
        [(100.0, 15.0), (200.0, 15.0), (300.0, 15.0), (400.0, 15.0), (400.0, 15.0)],
        [],
    ]
    assert [record["speed"] for record in records] == [400.0, 400.0]


def test_java_is_loaded_for_no_longer_than_the_warm_up_may_last(plans: list[Plan]) -> None:
    measure.measure(Measurement(workloads("lookups"), ["java"], rounds=1, seconds=1.0, warm_up_seconds=20.0))
    assert [plan.seconds for plan in plans] == [15.0, 5.0, 1.0]


def test_workloads_alternate_on_each_server(plans: list[Plan]) -> None:
    names = ["lookups", "connections-1"]
    records = measure.measure(Measurement(workloads(*names), ["native", "null"], 2, 1.0, warm_up_seconds=0.0))
    assert [(record["round"], record["server"], record["workload"]) for record in records] == [
        (number, server, name)
        for number, servers in ((1, ["native", "null"]), (2, ["null", "native"]))
        for server in servers
        for name in names
    ]
    assert len(plans) == len(records)


def test_calls_at_fixed_times_are_judged_by_their_cpu_time(plans: list[Plan]) -> None:
    (record,) = measure.measure(Measurement(workloads("steady"), ["native"], 1, 1.0, warm_up_seconds=0.0))
    assert record["speed"] == 200.0
    assert len(plans) == 1
