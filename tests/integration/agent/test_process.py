"""The agent as a process of its own: start, signals, exit codes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.agents import Agent, joined
from tests.support.programs.processes import BIN, TOPICS, Process, eventually

StartNameServer = Callable[..., FakeNameServer]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unregisters_and_the_exit_code_is_0(name_server: StartNameServer, number: signal.Signals) -> None:
    servers = [name_server("one"), name_server("two")]
    with Agent(joined(*(server.endpoint for server in servers))) as agent:
        assert [len(server.registrations) for server in servers] == [1, 1]
        check = (str(BIN / "broker-agent"), "healthcheck", f"--fast-listen={agent.endpoint}")
        # It has three seconds, and no flag for more.
        eventually(lambda: subprocess.run(check, check=False).returncode, lambda code: code == 0)
        agent.signal(number)
        assert agent.wait() == 0
    assert [len(server.unregistrations) for server in servers] == [1, 1]
    assert agent.lines[-1]["event"] == "agent_stopped"
    assert [line for line in agent.lines if line["level"] in ("warning", "error")] == []


def test_a_killed_agent_ends_its_channels_at_once(name_server: StartNameServer) -> None:
    server = name_server()
    with Agent(str(server.endpoint)) as agent:
        agent.kill()
        server.wait_until(lambda: not server.open_channels)
    assert server.unregistrations == []


def test_a_port_in_use_is_one_line_and_exit_code_2(name_server: StartNameServer) -> None:
    server = name_server()
    flags = ("--broker-name=broker-a", "--broker-id=0", "--broker-addr=127.0.0.1:10911", "--log-format=json")
    places = (f"--namesrv={server.endpoint}", f"--topics={TOPICS}", f"--listen={server.endpoint}")
    with Process([str(BIN / "broker-agent"), "serve", *flags, *places]) as agent:
        assert agent.wait() == 2
    (line,) = agent.lines
    assert (line["event"], line["program"]) == ("cannot_start", "broker-agent")
    assert line["text"] == f"setting listen: cannot listen on {server.endpoint}: Address already in use"
    assert server.registrations == []
