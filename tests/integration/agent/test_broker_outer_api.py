"""Scenarios of upstream's BrokerOuterAPITest: what comes of a call to several name servers at once.

RocketMQ first asks every name server whether anything changed (needRegister) and then registers with all of them. Here
one task does both at each, so an answer TRUE shows as a registration and FALSE as none.
"""

from __future__ import annotations

import threading

import grpc
from structlog.testing import capture_logs

from namesrv_common.grpc_errors import RichError
from tests.support.agents.fan_out_harness import BROKER, FanOut, registration
from tests.support.agents.fixtures import StartNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually


def test_a_query_without_an_answer_leaves_time_to_register(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        fan_out.register(force=True)
        server.hang()
        round_done = threading.Thread(target=fan_out.register, kwargs={"timeout_seconds": 3.0})
        round_done.start()
        server.wait_until(lambda: len(server.registrations) == 2)
        server.answer_again()
        round_done.join(TIMEOUT)


def test_a_name_server_with_a_call_in_flight_is_not_given_another(name_server: StartNameServer) -> None:
    server = name_server()
    server.hang()
    with FanOut(server) as fan_out, capture_logs() as logs:
        first_round = threading.Thread(target=fan_out.register, kwargs={"force": True})
        first_round.start()
        server.wait_until(lambda: len(server.registrations) == 1)
        for _ in range(5):
            assert fan_out.register(force=True) == ()
        assert len(server.registrations) == 1
        server.answer_again()
        first_round.join(TIMEOUT)
    assert [entry["event"] for entry in logs].count("call_still_in_flight") == 5


def test_a_registration_after_one_in_flight_is_left_out_if_done(name_server: StartNameServer) -> None:
    server = name_server()
    server.hang()
    with FanOut(server) as fan_out:
        target = fan_out.targets[0]
        first_round = threading.Thread(target=fan_out.register, kwargs={"force": True})
        first_round.start()
        server.wait_until(lambda: len(server.registrations) == 1)
        fan_out.api.register_broker(target)
        server.answer_again()
        first_round.join(TIMEOUT)
    assert len(fan_out.results) == 1
    assert len(server.registrations) == 1


def test_an_unregistration_that_fails_ends_the_channel(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        fan_out.register(force=True)
        server.hang()
        fan_out.api.register_seconds = 1.0
        fan_out.api.unregister_broker_all()
        server.wait_until(lambda: server.channels_opened == 2)
        assert not fan_out.targets[0].status().registered
        server.answer_again()
        server.wait_until(lambda: list(server.open_channels) == ["ns-2"])
    assert len(server.registrations) == 1


def test_an_unregistration_that_fails_in_passing_is_tried_again(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        fan_out.register(force=True)
        server.refuse_next = [RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")]
        fan_out.api.unregister_broker_all()
    assert len(server.unregistrations) == 2
    assert server.channels_opened == 1


def test_a_waiting_registration_is_not_made_once_suspended(name_server: StartNameServer) -> None:
    server = name_server()
    server.hang()
    with FanOut(server) as fan_out:
        (target,) = fan_out.targets
        for counter in (1, 2):
            fan_out.content = registration(counter)
            fan_out.api.register_broker(target)
            server.wait_until(lambda: len(server.registrations) == 1)
        fan_out.api.suspend()
        server.answer_again()
        eventually(lambda: not fan_out.api._lanes[target].busy)
    assert len(server.registrations) == 1


def test_unregistering_reaches_all_in_parallel_and_has_the_generation(name_server: StartNameServer) -> None:
    hanging, first, second = name_server("hanging"), name_server("one"), name_server("two")
    with FanOut(hanging, first, second) as fan_out:
        fan_out.register(force=True)
        hanging.hang()
        fan_out.api.register_seconds = 4.0
        fan_out.api.unregister_broker_all()
        assert fan_out.register(force=True) == ()
    for server in (first, second):
        assert [(r.broker, r.generation) for r in server.unregistrations] == [(BROKER, 1)]
        assert len(server.registrations) == 1


ROUND_SECONDS = 2.0
"""Time for a round in which somebody is too late: enough for all others, on a busy machine."""


def test_scenario_62_each_name_server_that_says_changed_is_registered(name_server: StartNameServer) -> None:
    servers = [name_server(name) for name in ("one", "two", "three")]
    with FanOut(*servers) as fan_out:
        fan_out.register(force=True, counter=1)
        for server in servers:
            server.version_held = None  # as after an operator's change: it answers changed=true to every agent
        results = fan_out.register(counter=1)
        assert {result.endpoint for result in results} == {server.endpoint for server in servers}
    for server in servers:
        assert len(server.queries) == 1
        assert len(server.registrations) == 2


def test_scenario_63_only_changed_and_in_time_is_in_the_results(name_server: StartNameServer) -> None:
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


def test_scenario_65_a_late_name_server_never_joins_the_two_results(name_server: StartNameServer) -> None:
    one, two, late = (name_server(name) for name in ("one", "two", "late"))
    with FanOut(late, one, two) as fan_out:
        fan_out.register(force=True, counter=1)
        late.hang()
        results = fan_out.register(force=True, counter=2, timeout_seconds=ROUND_SECONDS)
        expected = {one.endpoint, two.endpoint}
        assert {result.endpoint for result in results} == expected
        late.answer_again()
        eventually(lambda: late.version_held is not None and late.version_held.counter == 2)
        assert {result.endpoint for result in results} == expected
