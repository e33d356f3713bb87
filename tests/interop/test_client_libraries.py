"""The client libraries of clients/: their own tests, the cases of every client, examples, and real name servers."""

from __future__ import annotations

import json
import operator
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from clients.conformance.play import CASES, Case, play
from release import engine
from tests.interop.conftest import Built
from tests.interop.programs import (
    ENVIRONMENT,
    GO_ENVIRONMENT,
    INSTALL_SECONDS,
    REPOSITORY,
    Programs,
    RunningProgram,
    require,
    run,
    shown_by_client,
)
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import register, registration
from tests.support.rocketmq_programs.maven import MAVEN_OPTIONS, maven_environment
from tests.support.secured.fleet import Place, with_its_broker

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

TOPIC = "TopicTest"
GO = REPOSITORY / "clients" / "go"
EXAMPLES: dict[str, tuple[str, list[str], str]] = {
    "go": ("example", ["order-1: queue 2 of broker-a"], f"{TOPIC}: 1 broker groups now "),
    "java": (
        "routes",
        [
            f"{TOPIC}: FRESH",
            "  broker-a 0=127.0.0.1:10911",
            "the next message goes to 127.0.0.1:10911",
            "order-7 goes to queue 0",
        ],
        f"{TOPIC}: FRESH",
    ),
}
"""The example of each library, what it prints at first, and after a change."""
POSSIBLE = [case for case in CASES if case.get("needs") != "hedging"]


@pytest.fixture(params=["go", "java"])
def programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """The programs of each library in turn."""
    return built(request.param)


def test_the_go_module_is_formatted_and_its_tests_pass(built: Built) -> None:
    library, go = built("go").folder.parents[2] / "clients" / "go", require("go")
    assert engine.run([require("gofmt"), "-l", "."], folder=str(GO)) == ""
    run([go, "vet", "./..."], library, GO_ENVIRONMENT)
    run([go, "test", "./..."], library, GO_ENVIRONMENT)


def test_the_java_modules_own_tests_pass(built: Built) -> None:
    run([require("mvn"), *MAVEN_OPTIONS, "surefire:test"], built("java").folder, maven_environment())


def test_the_go_module_has_the_service_config_of_the_page() -> None:
    examples = REPOSITORY / "examples"
    assert (GO / "service_config.json").read_text() == (examples / "service_config.json").read_text()


@pytest.mark.parametrize("kind", ["token", "mTLS"])
@pytest.mark.parametrize("language", EXAMPLES)
def test_an_example_prints_the_route_and_each_change(built: Built, tmp_path: Path, language: str, kind: str) -> None:
    place = Place.make(tmp_path)
    example, expected, after_a_change = EXAMPLES[language]
    programs = built(language)  # for longer than a broker is believed to live
    with with_its_broker(place, kind) as (namesrv, broker):
        arguments = (str(namesrv.endpoint), TOPIC, *(["order-1"] if language == "go" else []))
        with programs.start(example, *arguments, **shown_by_client(place, kind)) as program:
            assert [program.next_text() for _ in expected] == expected
            read_only = registration(counter=2)
            read_only.topic_configs[0].perm = 4
            broker.registration.RegisterBroker(read_only, timeout=broker.TIMEOUT)
            assert program.next_text() == after_a_change


def test_an_unknown_token_is_told_by_its_reason(built: Built, tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    with NamesrvProcess(*place.flags("token")) as namesrv:
        shown = {"NAMESRV_CA": str(place.authority.path), "NAMESRV_TOKEN": "unknown"}
        done = built("go").run("example", str(namesrv.endpoint), TOPIC, "key", **shown)
    assert (done.returncode, "refused: " in done.stderr, " NOT_AUTHENTICATED: " in done.stderr) == (1, True, True)


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
