"""Requests that never end hold neither listener of an agent."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker_agent.listener import THREADS
from namesrv_common.endpoints import Endpoint
from tests.support.hostile.frames import OF_LISTENERS, call, hello
from tests.support.programs.agents import Agent
from tests.support.programs.processes import NamesrvProcess

CALLS = 4
"""Of each connection."""


@pytest.mark.parametrize(("which", "listener"), [("fast_listening_on", "agent"), ("listening_on", "clients")])
def test_more_half_requests_than_threads_keep_nobody_from_an_answer(which: str, listener: str) -> None:
    path = OF_LISTENERS[listener].lookup
    with NamesrvProcess() as server, Agent(str(server.endpoint)) as agent, ExitStack() as held:
        listen = Endpoint.parse(str(agent.wait_for("agent_started")[which]))
        for _ in range(THREADS):
            peer = held.enter_context(socket.create_connection(listen, timeout=20))
            peer.sendall(hello() + b"".join(call(path, 1 + 2 * number, None) for number in range(CALLS)))
            assert peer.recv(1)  # its settings: it has what was sent
        client = held.enter_context(agent.connect())
        assert client.status().broker_name == "broker-a"
        with grpc.insecure_channel(str(listen)) as channel:
            asked = health_pb2.HealthCheckRequest()
            health_pb2_grpc.HealthStub(channel).Check(asked, timeout=20)
