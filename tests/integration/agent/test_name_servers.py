"""Agents and name servers of every kind: whatever one of them does, the others are registered with as if alone."""

from __future__ import annotations

import signal
from functools import partial

import grpc

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.agents import NEVER_SCAN, Agent, AgentClient, free_port, joined
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
