from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.release.engine import REPOSITORY, Engine
from tests.containers.fleet import AGENTS, NAMESRVS, Fleet, probe
from tests.support.programs.processes import eventually

pytestmark = pytest.mark.timeout(600)

QUICK = timedelta(seconds=5)
"""A killed agent's broker must have left by then: before keepalive (10 s) or expiry (120 s) could have noticed."""
COMPOSE = REPOSITORY / "deploy/compose.yaml"


def test_both_name_servers_route_the_topic_to_master_and_slave(fleet: Fleet) -> None:
    answers = fleet.routes("0,1")
    assert [answers[endpoint]["namesrv"] for endpoint in fleet.endpoints] == list(NAMESRVS)
    for answer in answers.values():
        assert answer["brokers"] == {"0": f"{fleet.address(31)}:10911", "1": f"{fleet.address(32)}:10911"}
        assert answer["queues"] == {"broker-a": [4, 4]}


@pytest.mark.parametrize("role", [*NAMESRVS, *AGENTS])
def test_the_logs_are_json(fleet: Fleet, role: str) -> None:
    lines = fleet.logs(role).splitlines()
    assert lines
    for line in lines:
        assert json.loads(line)["event"]


def test_a_killed_master_is_gone_from_both_name_servers_within_seconds_and_returns(own_fleet: Fleet) -> None:
    own_fleet.engine.podman("kill", "--signal=KILL", own_fleet.container("agent-master"))
    killed_at = datetime.now(UTC)
    answers = own_fleet.routes("1")
    for role in NAMESRVS:
        # Not the time of the answers: asking takes seconds of its own on a busy machine.
        removed_at = eventually(lambda: own_fleet.times_of("broker_removed", role))[-1]  # noqa: B023
        assert removed_at - killed_at < QUICK
    for answer in answers.values():
        assert answer["queues"] == {"broker-a": [4, 4]}, "the queues stay while the slave lives"
    own_fleet.engine.podman("start", own_fleet.container("agent-master"))
    own_fleet.routes("0,1")


def test_a_killed_name_server_has_the_whole_route_again_after_its_restart(own_fleet: Fleet) -> None:
    own_fleet.engine.podman("kill", "--signal=KILL", own_fleet.container("namesrv-a"))
    own_fleet.engine.podman("start", own_fleet.container("namesrv-a"))
    own_fleet.routes("0,1")


def test_stopped_containers_end_with_exit_code_0_and_a_stopped_agent_unregisters(own_fleet: Fleet) -> None:
    for role, brokers in (("agent-master", "1"), ("agent-slave", "")):
        own_fleet.engine.podman("stop", "--time=20", own_fleet.container(role))
        assert own_fleet.state(role, "ExitCode") == "0", own_fleet.logs(role)
        own_fleet.routes(brokers)
    for role in NAMESRVS:
        own_fleet.engine.podman("stop", "--time=20", own_fleet.container(role))
        assert own_fleet.state(role, "ExitCode") == "0", own_fleet.logs(role)


def test_compose_file_runs(engine: Engine, tools: Path) -> None:
    compose = [
        str(tools / "podman-compose"),
        f"--file={COMPOSE}",
        f"--project-name={engine.namespace}",
        "--profile=agents",
    ]
    try:
        engine.enter(*compose, "up", "--detach", "--no-build", *NAMESRVS, *AGENTS, timeout=120)
        published = ["127.0.0.1:9878", "127.0.0.1:9879"]
        answers = probe(engine, published, "0,1")
        assert [answers[endpoint]["namesrv"] for endpoint in published] == list(NAMESRVS)
        assert answers[published[0]]["brokers"] == {"0": "127.0.0.1:10911", "1": "127.0.0.1:11011"}
    finally:
        engine.enter(*compose, "down", "--volumes", timeout=120)
