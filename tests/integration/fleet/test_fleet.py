"""Name servers and agents together, as real processes."""

from __future__ import annotations

import contextlib
from typing import Any

from namesrv_api.v1 import route_service_pb2

from tests.support.programs.agents import Agent
from tests.support.programs.processes import NamesrvProcess, eventually

DEBUG = ("--log-level", "debug")
NEVER_SCAN = ("--scan-not-active-broker-interval-millis", "0")


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
