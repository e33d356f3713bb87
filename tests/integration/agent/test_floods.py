"""Half requests and floods of connections hold neither listener of an agent."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker_agent.listener import THREADS
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.program import without_others
from tests.support.hostile.frames import OF_LISTENERS, call, hello
from tests.support.programs.agents import Agent
from tests.support.programs.processes import TOPICS, NamesrvProcess, eventually

# Requests that never end hold neither listener of an agent.

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


# A peer that opens connections to an agent without end takes nothing from the agent and its other listener.

DESCRIPTORS = 400
WITH_FEW_DESCRIPTORS = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
PLACES = without_others(DESCRIPTORS) // 2
"""Each listener has half of what is not for the agent itself."""


@pytest.mark.parametrize("which", ["fast_listening_on", "listening_on"])
def test_a_flood_of_connections_leaves_an_agent_what_it_needs_itself(which: str, tmp_path: Path) -> None:
    topics = Path(shutil.copy(TOPICS, tmp_path / "topics.json"))
    with (
        NamesrvProcess() as server,
        server.connect() as client,
        Agent(str(server.endpoint), topics=topics, prefix=WITH_FEW_DESCRIPTORS) as agent,
        ExitStack() as held,
    ):
        started = agent.wait_for("agent_started")
        listen = Endpoint.parse(str(started[which]))
        peers = [held.enter_context(socket.create_connection(listen, timeout=20)) for _ in range(DESCRIPTORS)]
        topics.write_text(topics.read_text().replace("TopicTest", "TopicOfNow"))
        eventually(lambda: client.route("TopicOfNow"))
        assert sum(bool(peer.recv(1)) for peer in peers) == PLACES, "the others are closed"
        if which != "fast_listening_on":
            assert agent_answers(agent)
        held.close()
        eventually(lambda: agent_answers(agent))


def agent_answers(agent: Agent) -> bool:
    with agent.connect() as client:
        try:
            return client.status().broker_name == "broker-a"
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False  # the connection was closed: there is no place for it
