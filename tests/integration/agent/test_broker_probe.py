"""The agent watches its broker: a dead one leaves the routes though its agent lives, and comes back by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb

from tests.support.programs.agents import NEVER_SCAN, Agent, StandInBroker, held_port, joined, name_servers
from tests.support.programs.processes import NamesrvProcess, eventually

ELSEWHERE = "10.0.0.1:10911"


@pytest.fixture
def broker() -> Iterator[StandInBroker]:
    with held_port() as port, StandInBroker(port) as listening:
        yield listening


def test_a_killed_broker_leaves_and_is_back_when_it_listens_again(broker: StandInBroker) -> None:
    probe = ("--probe-addr", str(broker.endpoint))
    with (
        name_servers(2) as servers,
        Agent(joined(*(server for server, _ in servers)), *probe, broker_addr=ELSEWHERE, probe="tcp") as agent,
        agent.connect() as status,
    ):
        for _, client in servers:
            eventually(client.addrs, lambda addrs: addrs == {0: ELSEWHERE})
        eventually(lambda: status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_UP)
        broker.kill()
        for server, client in servers:
            eventually(client.route, lambda route: route is None)
            assert server.wait_for("broker_removed")["reason"] == "BROKER_DOWN"
        assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        with StandInBroker(broker.endpoint.port):
            for _, client in servers:
                eventually(client.addrs, lambda addrs: addrs == {0: ELSEWHERE})
            assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_UP
        # Each change is said once, although the broker was looked at every second.
        eventually(
            lambda: [len(agent.events(event)) for event in ("broker_down", "broker_up")],
            lambda counts: counts == [1, 1],
        )


def test_a_broker_that_starts_after_its_agent_is_registered_then(broker: StandInBroker) -> None:
    addr, port = str(broker.endpoint), broker.endpoint.port
    broker.kill()
    with (
        NamesrvProcess(*NEVER_SCAN) as server,
        server.connect() as client,
        Agent(str(server.endpoint), broker_addr=addr, probe="tcp") as agent,
        agent.connect() as status,
    ):
        eventually(lambda: agent.events("agent_started"))
        assert agent.events("broker_not_there_yet")
        assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        assert server.events("broker_registered") == []
        with StandInBroker(port):
            eventually(client.addrs, lambda addrs: addrs == {0: addr})
