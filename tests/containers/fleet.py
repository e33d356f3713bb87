"""The name servers and agents of deploy/compose.yaml, each in a container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deploy.release.engine import REPOSITORY, CommandError, Engine
from deploy.release.images import tool
from tests.support.programs.processes import eventually

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


@contextmanager
def running_fleet(engine: Engine) -> Iterator[ComposeFleet]:
    """A healthy fleet whose topic both name servers route to both brokers; removed afterwards."""
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
