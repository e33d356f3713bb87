"""Two name servers, a master agent and a slave agent, each in a container with an address of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deploy.release.engine import CONTAINER_SECONDS, REPOSITORY, CommandError, Engine

PROBE = Path(__file__).with_name("probe.py")
TOPIC = "TopicTest"
"""One of the topics of examples/demo/topics.json, with four queues."""
START_SECONDS = 60
"""Time for a container to become healthy, or for a route to appear, on a busy machine."""
# What deploy/compose.yaml allows, and not podman's own temporary file systems that come with --read-only.
HARDENED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--tmpfs=/tmp:rw,size=16m,mode=1777",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--memory=512m",
    "--pids-limit=200",
)
NAMESRVS = {"namesrv-a": 11, "namesrv-b": 12}
"""The name servers and the last byte of their addresses."""
AGENTS = {"agent-master": 21, "agent-slave": 22}
"""The agents and the last byte of their addresses; the index is the broker id."""


@dataclass(frozen=True)
class Fleet:
    """The four containers in a network of their own."""

    engine: Engine
    number: int
    """Tells this fleet's names and addresses from another's."""

    def container(self, role: str) -> str:
        """The name of the container in a role."""
        return f"{role}-{self.number}"

    def address(self, last_byte: int) -> str:
        """An IP address in the fleet's network."""
        return f"10.77.{self.number}.{last_byte}"

    @property
    def endpoints(self) -> list[str]:
        """Where the name servers answer."""
        return [f"{self.address(last_byte)}:9878" for last_byte in NAMESRVS.values()]

    def start(self, role: str) -> None:
        """Starts the container of a role and waits until it is healthy."""
        if role in NAMESRVS:
            mount = f"--volume={self.container(role)}-data:/var/lib/namesrv"
            command = ["localhost/namesrv", "serve", f"--name={role}", "--allow-insecure"]
        else:
            mount = f"--volume={REPOSITORY}/examples/demo/topics.json:/etc/broker-agent/topics.json:ro"
            command = ["localhost/broker-agent", "serve", *self._registration(list(AGENTS).index(role))]
        last_byte = {**NAMESRVS, **AGENTS}[role]
        self.engine.podman(
            "run",
            "--detach",
            f"--name={self.container(role)}",
            f"--hostname={role}",
            f"--network=fleet-{self.number}",
            f"--ip={self.address(last_byte)}",
            # With an address that changes, neighbours would keep the old one for most of a minute after a restart.
            f"--mac-address=02:42:0a:4d:{self.number:02x}:{last_byte:02x}",
            f"--timeout={CONTAINER_SECONDS}",
            *HARDENED,
            mount,
            *command,
        )
        self.wait_until_healthy(role)

    def _registration(self, broker_id: int) -> list[str]:
        address = self.address(31 + broker_id)
        return [
            "--broker-name=broker-a",
            "--cluster=DefaultCluster",
            f"--broker-id={broker_id}",
            f"--broker-addr={address}:10911",
            f"--ha-server-addr={address}:10912",
            f"--namesrv={';'.join(self.endpoints)}",
            "--probe=none",
        ]

    def wait_until_healthy(self, role: str) -> None:
        """Runs the image's own HEALTHCHECK until it passes."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.engine.podman("healthcheck", "run", self.container(role))
            except CommandError as error:
                if time.monotonic() > deadline or self.state(role, "Running") != "true":
                    raise AssertionError(f"{role} is not healthy: {error}\n{self.logs(role)}") from error
                time.sleep(0.2)
            else:
                return

    def execute(self, role: str, *command: str) -> str:
        """Runs a command inside a container."""
        return self.engine.podman("exec", self.container(role), *command)

    def state(self, role: str, key: str) -> str:
        """A value of the container's state, such as Running or ExitCode."""
        return self.engine.podman("container", "inspect", "-f", f"{{{{.State.{key}}}}}", self.container(role))

    def logs(self, role: str) -> str:
        """What the container printed, standard error included."""
        return self.engine.enter("sh", "-c", f"podman logs {self.container(role)} 2>&1")

    def times_of(self, event: str, role: str) -> list[datetime]:
        """When a container logged an event, each time."""
        lines = map(json.loads, self.logs(role).splitlines())
        return [datetime.fromisoformat(line["timestamp"]) for line in lines if line["event"] == event]

    def routes(self, brokers: str, seconds: float = START_SECONDS) -> dict[str, dict[str, Any]]:
        """Waits until both name servers route the topic to just these brokers; their answers by endpoint.

        Args:
            brokers: Broker ids, such as ``0,1``.
            seconds: How long to wait.
        """
        return probe(self.engine, self.endpoints, brokers, seconds)


def probe(
    engine: Engine, endpoints: list[str], brokers: str, seconds: float = START_SECONDS
) -> dict[str, dict[str, Any]]:
    """Waits until all these name servers route the topic to just these brokers; their answers by endpoint."""
    command = [sys.executable, str(PROBE), TOPIC, brokers, str(seconds), *endpoints]
    answers: dict[str, dict[str, Any]] = json.loads(engine.enter(*command, timeout=seconds + 30))
    return answers


@contextmanager
def running_fleet(engine: Engine, number: int) -> Iterator[Fleet]:
    """A healthy fleet whose topic both name servers route to both brokers; removed afterwards."""
    fleet = Fleet(engine, number)
    containers = [fleet.container(role) for role in (*NAMESRVS, *AGENTS)]
    engine.podman("network", "create", "--internal", f"--subnet=10.77.{number}.0/24", f"fleet-{number}")
    try:
        for role in (*NAMESRVS, *AGENTS):
            fleet.start(role)
        fleet.routes("0,1")
        yield fleet
    finally:
        # Killed at once: one that ends by itself just as its time is over makes podman 4.3 fail.
        engine.podman("rm", "--force", "--ignore", "--time=0", "--volumes", *containers)
        engine.podman("network", "rm", "--force", f"fleet-{number}")
