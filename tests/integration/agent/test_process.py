"""The agent as a process of its own: start, signals, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.processes import TOPICS, eventually

StartNameServer = Callable[..., FakeNameServer]
PROGRAM = (sys.executable, "-m", "broker_agent")


def serve_command(*servers: FakeNameServer, listen: str = "127.0.0.1:0") -> tuple[str, ...]:
    return (
        *PROGRAM,
        "serve",
        "--broker-name=broker-a",
        "--broker-id=0",
        "--broker-addr=127.0.0.1:10911",
        f"--namesrv={';'.join(str(server.endpoint) for server in servers)}",
        f"--topics={TOPICS}",
        f"--listen={listen}",
        "--probe=none",
        "--log-format=json",
    )


class Agent:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.logs: list[dict[str, Any]] = []

    def wait_for_log(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.logs.append(json.loads(line))
            if self.logs[-1]["event"] == event:
                return self.logs[-1]
        raise AssertionError(f"the agent ended without {event}: {self.logs}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        self.logs += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode


@contextmanager
def agent(*servers: FakeNameServer) -> Iterator[Agent]:
    with subprocess.Popen(serve_command(*servers), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Agent(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unregisters_from_every_name_server_and_the_exit_code_is_0(
    name_server: StartNameServer, number: signal.Signals
) -> None:
    servers = [name_server("one"), name_server("two")]
    with agent(*servers) as running:
        started = running.wait_for_log("agent_started")
        for server in servers:
            assert len(server.registrations) == 1
        check = (*PROGRAM, "healthcheck", f"--fast-listen={started['fast_listening_on']}")
        # It has three seconds, and no flag for more.
        eventually(lambda: subprocess.run(check, check=False).returncode, lambda code: code == 0)
        assert running.end(number) == 0
    for server in servers:
        assert len(server.unregistrations) == 1
    assert running.logs[-1]["event"] == "agent_stopped"
    assert [entry for entry in running.logs if entry["level"] in ("warning", "error")] == []


def test_a_killed_agent_ends_its_channels_at_once(name_server: StartNameServer) -> None:
    server = name_server()
    with agent(server) as running:
        running.wait_for_log("agent_started")
        running.process.kill()
        server.wait_until(lambda: not server.open_channels)
    assert server.unregistrations == []


def test_a_port_in_use_is_one_line_and_exit_code_2(name_server: StartNameServer) -> None:
    server = name_server()
    ended = subprocess.run(
        serve_command(server, listen=str(server.endpoint)), capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == 2
    line = json.loads(ended.stderr)
    assert (ended.stdout, line["event"], line["program"]) == ("", "cannot_start", "broker-agent")
    assert line["text"] == f"setting listen: cannot listen on {server.endpoint}: Address already in use"
    assert server.registrations == []
