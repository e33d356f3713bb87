"""The client libraries of clients/: the cases of every client, and what they do with real name servers."""

from __future__ import annotations

import json
import operator
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from clients.conformance.play import CASES, Case, play
from tests.interop.conftest import Built
from tests.interop.programs import ENVIRONMENT, INSTALL_SECONDS, Programs, RunningProgram
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import register

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

TOPIC = "TopicTest"
POSSIBLE = [case for case in CASES if case.get("needs") != "hedging"]


@pytest.fixture(params=["go", "java"])
def programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """The programs of each library in turn."""
    return built(request.param)


@pytest.mark.parametrize("case", POSSIBLE, ids=operator.itemgetter("id"))
def test_a_client_passes_a_case(case: Case, programs: Programs) -> None:
    play(case, programs.commands["conformance"], ENVIRONMENT)


class Shown:
    """What a running client shows: answers to commands, and changes."""

    def __init__(self, program: RunningProgram, *namesrvs: NamesrvProcess) -> None:
        self._program = program
        first = {"servers": [str(namesrv.endpoint) for namesrv in namesrvs], "topics": [TOPIC]}
        program.go_on(json.dumps(first | {"hold_millis": 120_000, "timeout_millis": 3_000}))

    def until(self, accept: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Reads lines until one of them is accepted; returns it."""
        while not accept(line := self._program.next_line()):
            pass
        return line

    def until_changed_to(self, *brokers: str) -> None:
        """Waits for a change of the topic to these brokers."""
        wanted = [f"DefaultCluster/{broker}:0" for broker in brokers]
        self.until(lambda line: line.get("change") == TOPIC and line["brokers"] == wanted)

    def ask(self, command: str, topic: str) -> Mapping[str, Any]:
        """Gives a command and returns its answer."""
        self._program.go_on(json.dumps({command: topic}))
        return self.until(lambda line: "change" not in line)


def add(namesrv: NamesrvProcess, *brokers: str, topic: str = TOPIC) -> None:
    """Registers brokers, each with the topic and an address of its own."""
    with namesrv.connect() as client:
        for broker in brokers:
            register(client, topic, name=broker, port=10_000 + ord(broker))


def test_a_client_continues_when_name_servers_are_killed_and_hang(
    programs: Programs, namesrv: NamesrvProcess, other: NamesrvProcess
) -> None:
    add(namesrv, "a")
    add(other, "a")
    other.kill()
    with programs.start("conformance") as program:
        client = Shown(program, namesrv, other)
        client.until_changed_to("a")  # so it watches the one that runs
        with NamesrvProcess("--warm-up-millis", "0", port=other.endpoint.port) as again:
            add(again, "a", "b")
            namesrv.kill()
            client.until_changed_to("a", "b")
            add(again, "x", topic="Second")
            assert client.ask("route", "Second")["brokers"] == ["DefaultCluster/x:0"]
            with NamesrvProcess("--warm-up-millis", "0", port=namesrv.endpoint.port) as back:
                add(back, "a", "b", "c")
                add(back, "y", topic="Third")
                again.signal(signal.SIGSTOP)
                assert client.ask("cached", TOPIC)["brokers"] == ["DefaultCluster/a:0", "DefaultCluster/b:0"]
                assert client.ask("route", "Third")["brokers"] == ["DefaultCluster/y:0"]
                client.until_changed_to("a", "b", "c")
