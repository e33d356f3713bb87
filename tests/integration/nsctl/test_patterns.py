"""Commands about several broker groups, named by a pattern."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsctl.session import REFUSED, USAGE
from tests.support.programs.nsctl_runs import run
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

GROUPS = {
    ("east", "broker-a1"): ["%RETRY%g", "broker-a1", "orders", "payments"],
    ("east", "broker-a2"): ["BenchmarkTest", "orders", "payments"],
    ("west", "broker-b1"): ["orders"],
}


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        for port, ((cluster, name), topics) in enumerate(GROUPS.items(), 10911):
            broker = identity(f"127.0.0.1:{port}", name=name, cluster=cluster)
            client.registration.RegisterBroker(registration(tuple(topics), broker), timeout=client.TIMEOUT)
        yield process


class Run:
    def __init__(self, namesrv: NamesrvProcess, *arguments: str, exit_code: int = 0) -> None:
        result = run(*arguments, "-o", "json", "--namesrv", namesrv.endpoint, exit_code=exit_code)
        self.rows: list[dict[str, Any]] = json.loads(result.stdout or "[]")
        self.note = result.stderr

    @property
    def groups(self) -> list[tuple[str, str]]:
        return [(row["cluster"], row["broker"]) for row in self.rows]


def intents(namesrv: NamesrvProcess) -> list[str]:
    return [row["broker_name"] for row in Run(namesrv, "intents").rows]


def test_a_dry_run_lists_the_matches_and_their_topics_those_of_applications_first(namesrv: NamesrvProcess) -> None:
    run = Run(namesrv, "drain", "east/*", "--dry-run")
    assert run.groups == [("east", "broker-a1"), ("east", "broker-a2")]
    assert [row["topics"] for row in run.rows] == [
        ["orders", "payments", "%RETRY%g", "broker-a1"],
        ["orders", "payments", "BenchmarkTest"],
    ]
    assert {row["result"] for row in run.rows} == {"would need --force"}
    assert "TOPICS_IN_USE: 1 topic would lose the last writable queue: payments" in run.note
    assert [row["result"] for row in Run(namesrv, "drain", "east/*1", "--dry-run").rows] == ["would be done"]
    assert intents(namesrv) == []


def test_a_pattern_drains_all_or_none_and_restores_what_is_drained(namesrv: NamesrvProcess) -> None:
    refused = Run(namesrv, "drain", "east/*", exit_code=REFUSED)
    assert (refused.rows, intents(namesrv)) == ([], [])
    assert "nothing has changed" in refused.note
    done = Run(namesrv, "drain", "broker-a*", "--force", "--why", "move")
    assert done.groups == [("east", "broker-a1"), ("east", "broker-a2")]
    assert {row["result"] for row in done.rows} == {"done"}
    assert intents(namesrv) == ["broker-a1", "broker-a2"]
    assert Run(namesrv, "restore", "*/broker-*", "--dry-run").groups == done.groups, "broker-b1 is not drained"
    assert Run(namesrv, "restore", "*/broker-*").groups == done.groups
    assert intents(namesrv) == []
    assert "no drained broker group matches */broker-*" in Run(namesrv, "restore", "*/broker-*", exit_code=REFUSED).note


def test_a_route_is_explained_for_the_groups_of_a_pattern(namesrv: NamesrvProcess) -> None:
    explained = Run(namesrv, "explain", "orders", "east/*").rows
    assert [row["broker_name"] for row in explained] == ["broker-a1", "broker-a2"]
    assert [row["broker_name"] for row in Run(namesrv, "explain", "orders", "*1").rows] == ["broker-a1", "broker-b1"]
    assert [row["broker_name"] for row in Run(namesrv, "explain", "orders", "west/broker-b1").rows] == ["broker-b1"]
    assert (
        "no broker group of orders matches north/*"
        in Run(namesrv, "explain", "orders", "north/*", exit_code=REFUSED).note
    )


def test_a_cluster_can_stand_before_a_name_or_in_the_option(namesrv: NamesrvProcess) -> None:
    assert "would be done" in {row["result"] for row in Run(namesrv, "drain", "west/broker-b1", "--dry-run").rows}
    assert Run(namesrv, "drain", "*", "--cluster", "west", "--dry-run").groups == [("west", "broker-b1")]
    for wrong in (("east/*", "--cluster", "east"), ("east//*",), ("east/b\tr*",)):
        Run(namesrv, "drain", *wrong, exit_code=USAGE)
    assert "no broker group matches north/*" in Run(namesrv, "drain", "north/*", exit_code=REFUSED).note
