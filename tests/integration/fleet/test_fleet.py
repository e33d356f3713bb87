"""Name servers and agents together, as real processes."""

from __future__ import annotations

import contextlib
from typing import Any

from namesrv_api.v1 import route_service_pb2

from tests.support.programs.agents import Agent
from tests.support.programs.processes import NamesrvProcess, eventually

DEBUG = ("--log-level", "debug")
NEVER_SCAN = ("--scan-not-active-broker-interval-millis", "0")


def test_an_agent_that_is_terminated_unregisters_everywhere_and_exits_0() -> None:
    with contextlib.ExitStack() as resources:
        servers = [resources.enter_context(NamesrvProcess(*NEVER_SCAN)) for _ in range(2)]
        agent = resources.enter_context(Agent(";".join(str(server.endpoint) for server in servers)))
        clients = [resources.enter_context(server.connect()) for server in servers]
        for client in clients:
            eventually(client.addrs)
        assert agent.terminate() == 0
        for server, client in zip(servers, clients, strict=True):
            assert client.route() is None
            assert server.wait_for("broker_removed")["reason"] == "UNREGISTERED"


def test_a_slave_stays_when_its_master_dies_and_the_master_comes_back(namesrv: NamesrvProcess) -> None:
    master, slave = "127.0.0.1:10911", "127.0.0.1:10921"
    endpoint = str(namesrv.endpoint)
    with (
        namesrv.connect() as client,
        Agent(endpoint, broker_addr=master) as first,
        Agent(endpoint, broker_id=1, broker_addr=slave) as second,
    ):
        eventually(client.addrs, lambda addrs: addrs == {0: master, 1: slave})
        first.kill()
        eventually(client.addrs, lambda addrs: addrs == {1: slave})
        route = client.route()
        assert route is not None
        assert [queue.write_queue_nums for queue in route.queue_datas] == [4]
        with Agent(endpoint, broker_addr=master):
            eventually(client.addrs, lambda addrs: addrs == {0: master, 1: slave})
        assert second.terminate() == 0


def test_a_name_server_that_is_killed_and_restarted_has_the_whole_table_and_the_other_is_never_late() -> None:
    with contextlib.ExitStack() as resources:
        steady = resources.enter_context(NamesrvProcess(*NEVER_SCAN))
        doomed = resources.enter_context(NamesrvProcess(*NEVER_SCAN))
        endpoints = f"{steady.endpoint};{doomed.endpoint}"
        agent = resources.enter_context(
            # Every round sends the whole table, and rounds come as often as they can.
            Agent(endpoints, "--force-register", "--register-name-server-period-millis", "10000", *DEBUG)
        )
        client = resources.enter_context(steady.connect())
        eventually(client.addrs)
        rounds = eventually(lambda: agent.events("round_of_registrations"), lambda rounds: _accepted(rounds) == 2)
        late = agent.events("late_answer_not_applied")
        port = doomed.endpoint.port
        doomed.kill()
        # The next round ends with the answer of the living one in it: the dead one has not made it late.
        generation = _generation(client.snapshot())
        count = len(rounds)
        rounds = eventually(lambda: agent.events("round_of_registrations"), lambda rounds: len(rounds) > count)
        assert rounds[count]["accepted"] == 1
        assert agent.events("late_answer_not_applied") == late
        assert _generation(client.snapshot()) > generation
        restarted = resources.enter_context(NamesrvProcess(*NEVER_SCAN, port=port))
        with restarted.connect() as again:
            eventually(again.addrs)
            assert len([row for m in again.snapshot() for row in m.chunk.topics]) == 11
        assert steady.events("broker_removed") == []
        assert agent.terminate() == 0


def _accepted(rounds: list[dict[str, Any]]) -> int:
    """How many name servers took the last registration."""
    return int(rounds[-1]["accepted"]) if rounds else 0


def _generation(snapshot: list[route_service_pb2.StreamRouteSnapshotResponse]) -> int:
    return max(row.generation for message in snapshot for row in message.chunk.live_brokers)
