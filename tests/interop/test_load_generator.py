"""The load generator, compiled from its source: what it counts is what a server has answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.peers import __main__ as peers
from bench.peers import generator
from bench.peers.calls import Grpc, Remoting
from bench.peers.generator import Group, Plan
from bench.peers.recipes import RecipeFailed
from bench.peers.servers import NULL, NULL_REMOTING, Server
from bench.report import __main__ as report
from bench.report.store import read
from tests.interop.programs import require
from tests.support.engines import require_native

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require_native()
    require("cargo")
    generator.program()


def run(server: Server, folder: Path, *groups: Group, fill: Group | None = None, seconds: float = 30.0) -> Any:
    """Runs groups on a server, and waits for their calls."""
    plan = Plan(server.target, server.protocol, server.pids(), fill, groups, seconds, warm_up_seconds=0.0)
    return generator.run(plan, None, folder)


def test_every_call_of_a_list_is_made_and_counted_by_its_kind(tmp_path: Path) -> None:
    grpc = Grpc()
    brokers = [grpc.register(broker, range(10), counter=1) for broker in range(4)]
    calls = [grpc.lookup(topic) for topic in range(10)] + [grpc.heartbeat(0)]
    with Server("native", None) as server:
        fill = Group("fill", brokers, connections=1, limit=len(brokers))
        outcome = run(server, tmp_path, Group("clients", calls, connections=3, in_flight=2, limit=55), fill=fill)
    kinds = outcome["groups"]["clients"]["kinds"]
    assert {name: kind["calls"] for name, kind in kinds.items()} == {"GetTopicRoute": 50, "BrokerHeartbeat": 5}
    assert not any(kind["errors"] for kind in kinds.values())
    assert outcome["groups"]["clients"]["unanswered"] == 0
    assert kinds["GetTopicRoute"]["bytes_received"] > kinds["GetTopicRoute"]["bytes_sent"]
    assert outcome["server_peak_memory_bytes"] > 0


def test_an_answer_with_http_200_and_a_grpc_error_is_an_error(tmp_path: Path) -> None:
    with Server("native", None) as server:
        outcome = run(server, tmp_path, Group("clients", [Grpc().lookup(1)], connections=1, limit=7))
    assert outcome["groups"]["clients"]["kinds"]["GetTopicRoute"]["errors"] == {"grpc-status 5": 7}


def test_a_table_that_cannot_be_filled_is_no_measurement(tmp_path: Path) -> None:
    refused = Group("fill", [Grpc().heartbeat(0)], connections=1, limit=1)
    with Server("native", None) as server, pytest.raises(RecipeFailed, match="filling: 1 x grpc-status 5"):
        run(server, tmp_path, Group("clients", [Grpc().lookup(1)], connections=1, limit=1), fill=refused)


def test_latency_counts_from_when_a_call_was_due_and_not_from_when_it_could_be_sent(tmp_path: Path) -> None:
    # A thousand calls are due within a tenth of a second; one at a time, most of them have to wait.
    calls = Group("clients", [Grpc().lookup(1)], connections=1, in_flight=1, rate=10_000.0, limit=1_000)
    with Server("naive", None) as server:
        waiting = run(server, tmp_path, calls)["groups"]["clients"]["kinds"]["GetTopicRoute"]
        alone = run(server, tmp_path, calls._replace(rate=None))["groups"]["clients"]["kinds"]["GetTopicRoute"]
    assert waiting["calls"] == alone["calls"] == 1_000
    # Waiting in line is most of it, however fast or slow the machine is.
    assert waiting["latency_ms"]["p50"] > 10 * alone["latency_ms"]["p50"]


@pytest.mark.parametrize(("name", "language"), [(NULL, Grpc()), (NULL_REMOTING, Remoting())])
def test_both_protocols_are_answered_by_the_server_without_meaning(
    tmp_path: Path, name: str, language: Grpc | Remoting
) -> None:
    calls = [language.lookup(topic) for topic in range(5)]
    with Server(name, None) as server:
        outcome = run(server, tmp_path, Group("clients", calls, connections=4, in_flight=8, limit=2_000))
    (tally,) = outcome["groups"]["clients"]["kinds"].values()
    assert (tally["calls"], tally["errors"]) == (2_000, {})
    assert tally["bytes_received"] >= 2_000 * 150


def test_servers_are_compared_by_each_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "peers.json"
    arguments = ["--scale", "0.01", "--rounds", "1", "--seconds", "0.3", "--warm-up", "0"]
    arguments += ["--json", str(file)]
    for flag, names in (("--server", ["native", "naive"]), ("--workload", ["lookups", "storm", "cold-restart"])):
        arguments += [argument for name in names for argument in (flag, name)]
    peers.main(arguments)
    shown = capsys.readouterr().out
    assert "lookups: native" in shown
    written = json.loads(file.read_text())
    assert [(record["workload"], record["server"]) for record in written["records"]] == [
        (workload, server) for workload in ("lookups", "storm", "cold-restart") for server in ("native", "naive")
    ]


def test_report_measures_a_section_and_keeps_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    report.main(["--only", "connections", "--quick", "--scale", "0.01", "--json", str(file)])
    measured = read(file)
    assert {one.workload for one in measured} == {"connections-1: native", "connections-1024: native"}
    assert {one.command for one in measured} == {"python -m bench.report --only connections --quick"}
