"""Scenarios of upstream's BrokerOuterAPITest: what comes of a call to several name servers at once.

RocketMQ first asks every name server whether anything changed (needRegister) and then registers with all of them. Here
one task does both at each, so an answer TRUE shows as a registration and FALSE as none.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.agents.fan_out_harness import FanOut
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.processes import eventually

ROUND_SECONDS = 2.0
"""Time for a round in which somebody is too late: enough for all others, on a busy machine."""

StartNameServer = Callable[..., FakeNameServer]


def test_scenario_62_every_name_server_that_says_changed_is_registered_with(name_server: StartNameServer) -> None:
    servers = [name_server(name) for name in ("one", "two", "three")]
    with FanOut(*servers) as fan_out:
        fan_out.register(force=True, counter=1)
        for server in servers:
            server.version_held = None  # as after an operator's hand: changed=true for whoever asks
        results = fan_out.register(counter=1)
        assert {result.endpoint for result in results} == {server.endpoint for server in servers}
    for server in servers:
        assert len(server.queries) == 1
        assert len(server.registrations) == 2


def test_scenario_63_of_changed_unchanged_and_too_late_only_the_first_is_in_the_results(
    name_server: StartNameServer,
) -> None:
    changed, unchanged, late = (name_server(name) for name in ("changed", "unchanged", "late"))
    with FanOut(changed, unchanged, late) as fan_out:
        fan_out.register(force=True, counter=1)
        changed.version_held = None
        late.hang()
        results = fan_out.register(counter=1, timeout_seconds=ROUND_SECONDS)
        assert [result.endpoint for result in results] == [changed.endpoint]
        late.answer_again()
    assert (len(changed.registrations), len(unchanged.registrations)) == (2, 1)
    assert len(unchanged.queries) == 1


def test_scenario_64_three_healthy_name_servers_are_three_results(name_server: StartNameServer) -> None:
    servers = [name_server(name) for name in ("one", "two", "three")]
    with FanOut(*servers) as fan_out:
        results = fan_out.register(force=True)
        assert {result.endpoint for result in results} == {server.endpoint for server in servers}


def test_scenario_65_with_one_name_server_too_late_there_are_exactly_two_results_then_and_later(
    name_server: StartNameServer,
) -> None:
    one, two, late = (name_server(name) for name in ("one", "two", "late"))
    with FanOut(one, two, late) as fan_out:
        fan_out.register(force=True, counter=1)
        late.hang()
        results = fan_out.register(force=True, counter=2, timeout_seconds=ROUND_SECONDS)
        expected = {one.endpoint, two.endpoint}
        assert {result.endpoint for result in results} == expected
        late.answer_again()
        eventually(lambda: late.version_held is not None and late.version_held.counter == 2)
        assert {result.endpoint for result in results} == expected
