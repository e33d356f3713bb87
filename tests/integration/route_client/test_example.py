"""The example of a producer and real processes: what it prints while they come, go and die."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2

from tests.support.programs.agents import Agent, joined
from tests.support.programs.processes import NamesrvProcess, Process, ended, eventually
from tests.support.registrations import register, unregister

TOPIC = "TopicTest"
EXAMPLE = Path(__file__).parents[3] / "examples" / "producer.py"


@pytest.fixture
def start() -> Iterator[Callable[..., NamesrvProcess]]:
    """Starts name servers; all end with the test."""
    with ExitStack() as stack:
        yield lambda *arguments, **kwargs: stack.enter_context(NamesrvProcess(*arguments, **kwargs))


def test_the_example_prints_each_change_as_it_happens_and_wrong_arguments(start: Callable[..., NamesrvProcess]) -> None:
    wrong = ended([sys.executable, str(EXAMPLE), "--namesrv", "nowhere", TOPIC])
    assert wrong.returncode == 1
    assert "producer: address 'nowhere' has no port" in wrong.stderr
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
        brokers = {}
        for name in ("broker-a", "broker-b"):
            brokers[name] = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4_096))
            addr = f"127.0.0.1:{brokers[name].getsockname()[1]}"
            stack.enter_context(Agent(namesrv, "--broker-name", name, broker_addr=addr, probe="tcp"))
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
            brokers["broker-b"].close()
            wait_for("BROKER_DOWN")
            wait_for("sent to broker-a ")
    assert not [line for line in read if "nobody" in line]
