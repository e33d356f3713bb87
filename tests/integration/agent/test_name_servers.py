"""Agents and name servers of every kind: whatever one of them does, the others are registered with as if alone."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import grpc

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.agents import NEVER_SCAN, Agent, AgentClient, free_port, joined, name_servers
from tests.support.programs.processes import NamesrvProcess, eventually

UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")


def last_error(agent: AgentClient, endpoint: Endpoint) -> str:
    """What is wrong with a name server, in the agent's status."""
    return agent.target(endpoint).last_error


def test_stopped_dead_busy_or_slow_name_servers_delay_no_other() -> None:
    with (
        NamesrvProcess(*NEVER_SCAN) as healthy,
        NamesrvProcess(*NEVER_SCAN) as stopped,
        FakeNameServer("unavailable") as unavailable,
        FakeNameServer("slow") as slow,
        free_port() as refusing,
        healthy.connect() as client,
    ):
        stopped.signal(signal.SIGSTOP)
        unavailable.refusal, slow.delay_seconds = UNAVAILABLE, 3.0
        endpoints = joined(stopped, refusing, unavailable, slow, healthy)
        with Agent(endpoints) as agent, agent.connect() as status:
            # The agent says that it has started when the first round is over.
            assert client.addrs() == {0: "127.0.0.1:10911"}
            assert healthy.wait_for("broker_registered")["timestamp"] < agent.wait_for("agent_started")["timestamp"]
            eventually(lambda: status.target(slow.endpoint).registered)
            for endpoint in (stopped.endpoint, refusing, unavailable.endpoint):
                eventually(partial(last_error, status, endpoint))
                assert not status.target(endpoint).registered
            stopped.signal(signal.SIGCONT)
            eventually(lambda: status.target(stopped.endpoint).registered)
            assert agent.terminate() == 0


def test_the_list_in_a_file_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "name-servers"
    with name_servers(3) as [(first, of_first), (second, of_second), (third, of_third)]:
        file.write_text(f"{first.endpoint}\n{second.endpoint}\n")
        with Agent(f"file:{file}") as agent, agent.connect() as status:
            for client in (of_first, of_second):
                eventually(client.addrs)
            file.write_text(f"# first is retired\n{second.endpoint}\n{third.endpoint}\n")
            eventually(of_third.addrs)
            eventually(of_first.route, lambda route: route is None)
            assert first.wait_for("broker_removed")["reason"] == "UNREGISTERED"
            assert of_second.addrs()
            assert second.events("broker_removed") == []
            expected = {str(second.endpoint), str(third.endpoint)}
            eventually(lambda: {target.endpoint for target in status.status().targets}, lambda held: held == expected)
            file.write_text("not;a;list\n")
            eventually(lambda: agent.events("namesrv_list_bad"))
            assert {target.endpoint for target in status.status().targets} == expected
            assert agent.terminate() == 0
        assert of_second.route() is None
        assert of_third.route() is None
