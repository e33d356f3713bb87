"""The gate of calls: a bound for each class of them, who is let in, and what the log says of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2
from structlog.testing import capture_logs

from namesrv.app import access
from namesrv.app.access import Admission, Authorizer, Entered, FairShares, caller_of
from namesrv.core.errors import Reason
from namesrv_common.server.permits import (
    REFUSAL_LOG_SECONDS,
    BrokerPattern,
    NamedBroker,
    Permission,
    Permits,
    Principal,
    log_of_refusals,
)
from namesrv_common.server.rpc_handlers import Context
from namesrv_common.server.shares import MACHINE, Sharer
from tests.support.calls_from_nowhere import Caller
from tests.support.refusals import refuses

LOOKUP = route_service_pb2.DESCRIPTOR.services_by_name["RouteService"].methods_by_name["GetTopicRoute"]
WATCH = route_service_pb2.DESCRIPTOR.services_by_name["RouteService"].methods_by_name["WatchTopicRoutes"]
REGISTER = registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"].methods_by_name["RegisterBroker"]
CHANNEL = registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"].methods_by_name["OpenChannel"]
ADMINISTER = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name["DeleteTopic"]

BROKER = Principal("broker", register=(BrokerPattern.parse("c/a"),))


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """Each call has a context of its own; tests share one."""
    token = access._entered.set(None)
    yield
    access._entered.reset(token)


class Call(Caller):
    """What gRPC reports about a call."""

    def __init__(self, uris: Sequence[str] = (), dns: Sequence[str] = (), common_name: str | None = None) -> None:
        self._shown = {
            "peer_uri": [uri.encode() for uri in uris],
            "peer_dns": [name.encode() for name in dns],
            "x509_common_name": [] if common_name is None else [common_name.encode()],
        }

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown


def call(**shown: Any) -> Context:
    return cast("Context", Call(**shown))


def test_each_class_of_calls_is_refused_beyond_its_own_bound_only() -> None:
    bounds = FairShares(lookups=1, registrations=2, admin_calls=3, streams=4)
    gates = {
        name: Admission(method, bounds, None)
        for name, method in {"lookup": LOOKUP, "register": REGISTER, "administer": ADMINISTER, "watch": WATCH}.items()
    }
    for most, gate in enumerate(gates.values(), 1):
        for _ in range(most):
            assert gate.enter(call()).principal is None
        with refuses(Reason.OVERLOADED, match=f"under way: {most + 1} is over the limit of {most} for all"):
            gate.enter(call())
    with refuses(Reason.OVERLOADED):
        Admission(CHANNEL, bounds, None).enter(call())  # streams of all services count together
    for gate in gates.values():
        gate.leave(Entered(None, MACHINE))
        gate.enter(call())


def authorizer(permits: Permits, clock: list[float] | None = None) -> Authorizer:
    refused = log_of_refusals(lambda: (clock or [0.0])[0])
    return Authorizer(lambda: permits, lambda request: request, refused)


PERMITS = Permits({"broker.example": BROKER})


def test_the_principal_of_a_call_is_its_caller() -> None:
    gate = Admission(REGISTER, FairShares(), authorizer(PERMITS))
    shown = call(dns=["other", "broker.example"], common_name="x")
    entered = gate.enter(shown)
    assert entered.principal is BROKER
    assert entered.sharer == Sharer("broker")
    assert caller_of(shown) == "broker"


def test_a_refused_call_takes_no_room() -> None:
    gate = Admission(LOOKUP, FairShares(lookups=1), authorizer(Permits({"x": Principal("x", lookup=True)})))
    for _ in range(3):
        with refuses(Reason.NOT_AUTHENTICATED):
            gate.enter(call())
        with refuses(Reason.NOT_PERMITTED):
            gate.enter(call(uris=["spiffe://unknown"]))
    gate.enter(call(common_name="x"))


def test_names_of_brokers_are_checked_in_registrations_only() -> None:
    keeper = authorizer(PERMITS)
    brokers = [NamedBroker(("c", "a"), "10.0.0.1:1"), NamedBroker(("c", "b"), "10.0.0.1:1")]
    register = Admission(REGISTER, FairShares(), keeper)
    entered = Entered(BROKER, Sharer("broker"))
    register.checked(entered, brokers[:1], call())
    with refuses(Reason.NOT_PERMITTED, match=r"broker may not register c/b at 10\.0\.0\.1:1"):
        register.checked(entered, brokers, call())
    Admission(LOOKUP, FairShares(), keeper).checked(entered, brokers, call())


NARROWED = Principal("broker", register=(BrokerPattern.parse("c/b"),))


@pytest.mark.parametrize(
    ("changed", "is_ended"), [(PERMITS, False), (Permits({"broker.example": NARROWED}), True), (Permits(), True)]
)
async def test_changed_permits_end_an_open_call_that_they_do_not_admit(changed: Permits, is_ended: bool) -> None:
    permits = [PERMITS]
    keeper = Authorizer(lambda: permits[0], lambda request: request)
    gate, shown = Admission(REGISTER, FairShares(), keeper), call(dns=["broker.example"])
    entered = gate.enter(shown)
    with refuses(Reason.NOT_PERMITTED) if is_ended else nullcontext(), gate.while_allowed(entered, shown):
        gate.checked(entered, [NamedBroker(("c", "a"))], shown)
        permits[0] = changed
        await keeper.open_calls.check_again()
        await asyncio.sleep(0)


async def test_a_need_found_while_a_call_is_open_is_checked_again_with_the_others() -> None:
    permits = [Permits({"ops": Principal("ops", lookup=True, administer=True)})]
    keeper = Authorizer(lambda: permits[0], lambda _: ())
    gate, shown = Admission(WATCH, FairShares(), keeper), call(common_name="ops")
    entered = gate.enter(shown)
    with refuses(Reason.NOT_PERMITTED, match="ops may not administer"), gate.while_allowed(entered, shown):
        access.need(partial(Principal.check, permission=Permission.ADMINISTER))
        permits[0] = Permits({"ops": Principal("ops", lookup=True)})
        await keeper.open_calls.check_again()
        await asyncio.sleep(0)


async def test_a_request_read_after_permits_changed_is_checked_by_the_new_ones() -> None:
    """A large one takes so long to read."""
    permits = [PERMITS]
    keeper = Authorizer(lambda: permits[0], lambda request: request)
    gate, shown = Admission(REGISTER, FairShares(), keeper), call(dns=["broker.example"])
    entered = gate.enter(shown)
    with gate.while_allowed(entered, shown):
        permits[0] = Permits({"broker.example": NARROWED})
        await keeper.open_calls.check_again()
        gate.checked(entered, [NamedBroker(("c", "b"))], shown)
        with refuses(Reason.NOT_PERMITTED, match="broker may not register c/a"):
            gate.checked(entered, [NamedBroker(("c", "a"))], shown)


def test_a_flood_of_refused_calls_makes_few_lines() -> None:
    clock = [0.0]
    gate = Admission(LOOKUP, FairShares(), authorizer(PERMITS, clock))
    with capture_logs() as lines:
        for step in (0.0,) * 10 + (REFUSAL_LOG_SECONDS,):
            clock[0] += step
            with refuses(Reason.NOT_AUTHENTICATED):
                gate.enter(call())
    assert [line["not_told"] for line in lines] == [0, 9]
    assert lines[0]["call"] == LOOKUP.full_name
