"""What the states of a fleet are made of: name servers, agents, and what an operator needs to look at them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually

BROKER, TOPIC = "broker-a", "TopicTest"
NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True)
class Scene:
    """What an operator needs to look at a fleet."""

    namesrv: str
    """The list of name servers."""
    public: Mapping[str, str]
    """Addresses of this run, each with the one that a page shows."""
    agent: str = NOWHERE
    flags: tuple[str, ...] = ()
    """Of nsctl, beside the name servers or agents."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the runbook's words in capitals stand for here, where it is not the usual."""

    def command(self, text: str) -> str:
        """A command of the runbook with what its words in capitals stand for here."""
        words = {"BROKER": BROKER, "TOPIC": TOPIC, "AGENT": self.agent, **self.words}
        return re.sub("|".join(rf"\b{word}\b" for word in words), lambda found: words[found[0]], text)


@contextmanager
def two_name_servers(
    folder: Path, second: tuple[str, ...] = (), second_is: Mapping[str, str] | None = None
) -> Iterator[list[NamesrvProcess]]:
    """Two of them: ``second`` are flags of the second, ``second_is`` are variables of it."""
    environment = None if second_is is None else dict(second_is)
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(folder / "a")) as one,
        NamesrvProcess("--name", "ns-b", "--data-dir", str(folder / "b"), *second, environment=environment) as two,
    ):
        yield [one, two]


def scene_of(
    servers: list[NamesrvProcess],
    agent: Agent | None = None,
    flags: tuple[str, ...] = (),
    words: Mapping[str, str] | None = None,
) -> Scene:
    """The scene of name servers that have the addresses ns-a, ns-b and so on for the public."""
    public = {str(server.endpoint): f"ns-{letter}:9876" for server, letter in zip(servers, "abc", strict=False)}
    if agent is not None:
        public[str(agent.endpoint)] = "agent-a2:10918"
    address = NOWHERE if agent is None else str(agent.endpoint)
    return Scene(";".join(str(server.endpoint) for server in servers), public, address, flags, words or {})


@contextmanager
def registered_agent(servers: list[NamesrvProcess], broker_id: int = 0) -> Iterator[Agent]:
    """An agent whose broker every name server has."""
    names = ";".join(str(server.endpoint) for server in servers)
    with Agent(names, broker_id=broker_id, broker_addr=f"127.0.0.1:{10911 + broker_id}") as agent:
        eventually(lambda: agent.events("registered"), lambda told: len(told) == len(servers))
        yield agent


def status_of(server: NamesrvProcess) -> pb.GetNamesrvStatusResponse:
    """What a name server says of itself."""
    with server.connect() as client:
        return client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=Client.TIMEOUT)
