"""RouteClient and real processes: what a producer sees while they come, go, die and hang, and after a fork."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2

from route_client import ClientSettings, RouteClient
from tests.integration.route_client.conftest import TOPIC, InOrder, watching
from tests.support.programs.agents import Agent, StandInBroker, joined
from tests.support.programs.processes import NamesrvProcess, Process, ended, eventually
from tests.support.registrations import register, unregister

EXAMPLE = Path(__file__).parents[3] / "examples" / "producer.py"


@pytest.fixture
def start() -> Iterator[Callable[..., NamesrvProcess]]:
    """Starts name servers; all end with the test."""
    with ExitStack() as stack:
        yield lambda *arguments, **kwargs: stack.enter_context(NamesrvProcess(*arguments, **kwargs))


def test_a_name_server_that_hangs_is_noticed_by_its_missing_pings(
    start: Callable[..., NamesrvProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.namesrv.KEEPALIVE_SECONDS", 1)
    quick_pings = ("--keepalive-time-millis", "1000")
    hangs, left = start(*quick_pings), start(*quick_pings)
    with RouteClient(joined(hangs, left), ClientSettings(timeout_seconds=2), [TOPIC], InOrder()) as client:
        watching(client, hangs)
        hangs.signal(signal.SIGSTOP)
        watching(client, left)
        with left.connect() as broker:
            register(broker, TOPIC)
        eventually(lambda: client.find_broker_address_in_publish("broker-a"))
        hangs.signal(signal.SIGCONT)


def test_the_example_prints_each_change_as_it_happens(start: Callable[..., NamesrvProcess]) -> None:
    server = start()
    program = [sys.executable, str(EXAMPLE), "--namesrv", str(server.endpoint), "--seconds", "60", "--rate", "0", TOPIC]
    with server.connect() as broker, Process(program, pipes=True) as example:
        _, output = example.pipes
        assert "knows no topic 'TopicTest'; waiting for it" in output.readline()
        register(broker, TOPIC)
        assert "TopicTest: send to 4 queues of broker-a" in output.readline()
        register(broker, TOPIC, name="broker-b", port=10921)
        assert "send to 4 queues of broker-a, 4 queues of broker-b" in output.readline()
        unregister(broker)
        assert "send to 4 queues of broker-b; 127.0.0.1:10911 left: UNREGISTERED" in output.readline()
        server.kill()
        assert "no name server can be reached; going on with this route" in output.readline()
        back = start(port=server.endpoint.port)
        assert "nobody says why; going on with the old route" in output.readline()
        with back.connect() as again:
            register(again, TOPIC, name="broker-b", port=10921)
        assert "confirmed by a name server" in output.readline()
        example.signal(signal.SIGINT)
        assert example.wait() == 0


def test_the_example_loses_no_message_to_a_lost_name_server_a_lost_broker_or_a_drain(
    start: Callable[..., NamesrvProcess], tmp_path: Path
) -> None:
    servers = [start("--data-dir", str(tmp_path / name)) for name in "ab"]
    namesrv = joined(*servers)
    read: list[str] = []

    def wait_for(*texts: str) -> None:
        """Reads until a line ends with these texts, each with a number behind it if it ends with a space."""
        pattern = "".join(re.escape(text) + (r"\d+" if text.endswith(" ") else ".*") for text in texts)
        for line in output:
            read.append(line)
            if re.search(f"{pattern}$", line):
                return
        raise AssertionError("".join(read[-20:]))

    with ExitStack() as stack:
        brokers = {name: stack.enter_context(StandInBroker()) for name in ("broker-a", "broker-b")}
        for name, broker in brokers.items():
            agent = Agent(namesrv, "--broker-name", name, broker_addr=str(broker.endpoint), probe="tcp")
            stack.enter_context(agent)
        for server in servers:
            with server.connect() as client:
                eventually(
                    partial(client.route, TOPIC), lambda route: route is not None and len(route.broker_datas) == 2
                )
        program = [sys.executable, str(EXAMPLE), "--namesrv", namesrv, "--rate", "200", "--seconds", "120", TOPIC]
        _, output = stack.enter_context(Process(program, pipes=True)).pipes
        wait_for("sent to broker-a ", ", broker-b ")
        with servers[1].connect() as client:
            servers[0].kill()
            wait_for("sent to broker-a ", ", broker-b ")
            drain = admin_service_pb2.WipeWritePermOfBrokerRequest(broker_name="broker-a")
            client.admin.WipeWritePermOfBroker(drain, timeout=20)
            wait_for("sent to broker-b ")
            restore = admin_service_pb2.AddWritePermOfBrokerRequest(broker_name="broker-a")
            client.admin.AddWritePermOfBroker(restore, timeout=20)
            wait_for("sent to broker-a ", ", broker-b ")
            brokers["broker-b"].kill()
            wait_for("BROKER_DOWN")
            wait_for("sent to broker-a ")
    assert not [line for line in read if "nobody" in line]


def test_the_example_says_what_is_wrong_with_its_arguments() -> None:
    example = ended([sys.executable, str(EXAMPLE), "--namesrv", "nowhere", TOPIC])
    assert example.returncode == 1
    assert "producer: address 'nowhere' has no port" in example.stderr


IN_A_FORKED_CHILD = """
import os, signal, sys
from route_client import ForkedProcessError, RouteClient

with RouteClient("127.0.0.1:1") as client:
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    signal.alarm(20)
    for ask in (client.route, client.publish_info, client.forget):
        try:
            ask("TopicTest")
        except ForkedProcessError as error:
            print(error, flush=True)
    client.close()
    os._exit(0)
"""


def test_a_forked_child_is_told_to_create_a_client_after_the_fork() -> None:
    # gRPC's handlers may keep the child from this code.
    program = ended([sys.executable, "-c", IN_A_FORKED_CHILD], {"GRPC_ENABLE_FORK_SUPPORT": "0"})
    lines = program.stdout.splitlines()
    assert (len(lines), program.returncode) == (3, 0), program.stderr
    assert all(line.endswith("create the client after the fork") for line in lines)
