"""The name servers and agents of deploy/compose.yaml, each in a container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from release.engine import REPOSITORY, CommandError, Engine
from release.images import tool
from tests.support.programs.processes import eventually

pytestmark = pytest.mark.timeout(600)

COMPOSE_FILE = REPOSITORY / "deploy/compose.yaml"
TOPIC = "TopicTest"
"""One of the topics of examples/demo/topics.json, with four queues."""
START_SECONDS = 60
"""Time for a container to become healthy, or for a route to appear, on a busy machine."""
NAMESRVS = ("namesrv-a", "namesrv-b")
AGENTS = ("agent-master", "agent-slave")
"""The index is the broker id."""
BROKER_ADDRS = {0: "127.0.0.1:10911", 1: "127.0.0.1:11011"}
"""The addresses that the agents of the file register if nothing else is set."""


@dataclass(frozen=True)
class ComposeFleet:
    """The four containers, in a network of their own."""

    engine: Engine

    def container(self, role: str) -> str:
        """The name of the container in a role."""
        return f"{self.engine.namespace}_{role}_1"

    def podman(self, *arguments: str) -> str:
        """What podman prints for a command whose last argument is a role."""
        *before, role = arguments
        return self.engine.podman(*before, self.container(role))

    def execute(self, role: str, *command: str) -> str:
        """Runs a command inside a container."""
        return self.engine.podman("exec", self.container(role), *command)

    def state(self, role: str, key: str) -> str:
        """A value of the container's state, such as Running or ExitCode."""
        return self.podman("container", "inspect", "-f", f"{{{{.State.{key}}}}}", role)

    def logs(self, role: str) -> str:
        """What the container printed, standard error included."""
        return self.engine.enter("sh", "-c", f"podman logs {self.container(role)} 2>&1")

    def wait_until_healthy(self, role: str) -> None:
        """Runs the image's own HEALTHCHECK until it passes."""

        def problem() -> str:
            try:
                return self.podman("healthcheck", "run", role)
            except CommandError as error:
                return str(error)

        eventually(problem, lambda found: not found, START_SECONDS)

    def wait_for_route(self, *broker_ids: int) -> None:
        """Waits until both name servers route the topic to just these brokers, with its four queues."""
        addrs = {broker_id: BROKER_ADDRS[broker_id] for broker_id in broker_ids}
        for role in NAMESRVS:
            wanted = [(addrs, 4, 4)] if addrs else []
            eventually(lambda: self._route(role), wanted.__eq__, START_SECONDS)  # noqa: B023

    def _route(self, role: str) -> list[tuple[dict[int, str], int, int]]:
        try:
            found: list[dict[str, Any]] = json.loads(self.execute(role, "nsctl", "route", TOPIC, "-o", "json"))
        except CommandError:  # no broker has the topic
            return []
        return [
            (
                {broker["broker_id"]: broker["broker_addr"] for broker in group["broker_addrs"]},
                group["read_queue_nums"],
                group["write_queue_nums"],
            )
            for group in found
        ]


@pytest.fixture(scope="module")
def fleet(engine: Engine) -> Iterator[ComposeFleet]:
    """A healthy fleet whose topic both name servers route to both brokers. The last test stops it."""
    fleet = ComposeFleet(engine)
    compose = [str(tool("python").with_name("podman-compose")), f"--file={COMPOSE_FILE}"]
    compose += [f"--project-name={engine.namespace}", "--profile=agents"]
    try:
        engine.enter(*compose, "up", "--detach", "--no-build", *NAMESRVS, *AGENTS, timeout=120)
        for role in (*NAMESRVS, *AGENTS):
            fleet.wait_until_healthy(role)
        fleet.wait_for_route(0, 1)
        yield fleet
    finally:
        # Killed at once: a container that ends by itself just as its time is over makes podman 4.3 fail.
        for roles in (AGENTS, NAMESRVS):
            containers = [fleet.container(role) for role in roles]
            engine.podman("rm", "--force", "--ignore", "--time=0", "--volumes", *containers)


@pytest.mark.parametrize("role", [*NAMESRVS, *AGENTS])
def test_a_container_runs_as_a_user_without_privileges_on_a_read_only_root(fleet: ComposeFleet, role: str) -> None:
    assert fleet.execute(role, "id", "-u") == "10001"
    status = fleet.execute(role, "cat", "/proc/1/status")
    values = dict(line.split(":\t", 1) for line in status.splitlines())
    assert values["Uid"].split() == ["10001"] * 4
    assert int(values["CapEff"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    for folder in ("/", "/opt", "/etc"):
        with pytest.raises(CommandError, match=r"Read-only file system|Permission denied"):
            fleet.execute(role, "touch", f"{folder}/written")
    mounts = [line.split() for line in fleet.execute(role, "cat", "/proc/1/mounts").splitlines()]
    assert next(options for _, path, _, options, *_ in mounts if path == "/").split(",")[0] == "ro"


@pytest.mark.parametrize("role", NAMESRVS)
def test_nsctl_in_the_container_finds_its_own_name_server_which_may_write(fleet: ComposeFleet, role: str) -> None:
    (status,) = json.loads(fleet.execute(role, "nsctl", "status", "-o", "json"))
    assert (status["header"]["namesrv_name"], status["endpoint"]) == (role, "127.0.0.1:9878")
    # A fleet that has just begun is warming up: a warning, and exit code 5.
    findings = json.loads(fleet.execute(role, "sh", "-c", "nsctl doctor -o json || test $? = 5"))
    assert {finding["code"] for finding in findings} <= {"WARMING"}
    fleet.execute(role, "touch", "/var/lib/namesrv/written")


def test_stopped_containers_end_with_code_0_and_agents_unregister(fleet: ComposeFleet) -> None:
    for role, left in (("agent-master", (1,)), ("agent-slave", ())):
        fleet.podman("stop", "--time=20", role)
        assert fleet.state(role, "ExitCode") == "0", fleet.logs(role)
        fleet.wait_for_route(*left)
    for role in NAMESRVS:
        fleet.podman("stop", "--time=20", role)
        assert fleet.state(role, "ExitCode") == "0", fleet.logs(role)
