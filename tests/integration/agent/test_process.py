"""The agent as a process of its own: start, signals, exit codes."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.agents.fixtures import StartNameServer
from tests.support.programs.agents import Agent, joined
from tests.support.programs.processes import BIN, eventually


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
