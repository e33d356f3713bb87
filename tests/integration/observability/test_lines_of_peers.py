"""What peers send makes few lines in a log, all of our own format."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest

from groundwork.endpoints import Endpoint
from tests.support.hostile.frames import LOOKUP, call, hello
from tests.support.programs.agents import Agent
from tests.support.programs.processes import NamesrvProcess, Process, eventually

AGENT_STATUS = "/broker_agent_api.v1.BrokerAgentService/GetAgentStatus"
HEARTBEAT = "/broker_agent_api.v1.ClientService/Heartbeat"
BAD = (
    ("grpc-timeout", "abc"),
    ("grpc-encoding", "nonsense"),
    ("te", "no"),
    ("grpc-previous-rpc-attempts", "x"),
    ("grpc-retry-pushback-ms", "x"),
    ("content-type", "text/html"),
    ("x-bin", "!!"),
    ("user-agent", "\x1b[31m"),
)
"""Metadata that is wrong."""
CALLS = 20
MOST_LINES = 30
"""For all 160 calls: the engine of a name server tells of 20 such connections, and then of one every few seconds."""


def send_bad_metadata(listen: Endpoint, path: str) -> None:
    """Many calls with each, each kind on a connection of its own; whatever the answer is has come when it returns."""
    for field in BAD:
        with socket.create_connection(listen, timeout=5) as peer, suppress(OSError):
            peer.sendall(hello() + b"".join(call(path, 1 + 2 * number, b"", field) for number in range(CALLS)))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass


def check_lines(process: Process, before: int) -> None:
    """Every line is JSON, and there are few."""
    lines = process.raw.splitlines()
    foreign = [line for line in lines if not line.startswith("{")]
    assert foreign == []
    assert all(json.loads(line) for line in lines)
    assert len(lines) - before < MOST_LINES


def test_bad_metadata_makes_no_lines_at_a_name_server() -> None:
    with NamesrvProcess() as server, server.connect() as client:
        before = len(server.raw.splitlines())
        send_bad_metadata(server.endpoint, LOOKUP)
        assert eventually(lambda: client.addrs() == {})
        check_lines(server, before)


@pytest.mark.parametrize(("which", "path"), [("fast_listening_on", AGENT_STATUS), ("listening_on", HEARTBEAT)])
def test_bad_metadata_makes_no_lines_at_an_agent(which: str, path: str) -> None:
    with NamesrvProcess() as server, Agent(str(server.endpoint)) as agent, agent.connect() as client:
        before = len(agent.raw.splitlines())
        send_bad_metadata(Endpoint.parse(str(agent.wait_for("agent_started")[which])), path)
        assert client.status().broker_name == "broker-a"
        check_lines(agent, before)
