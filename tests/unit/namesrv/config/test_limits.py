"""Limits on input that no other test takes to their value and one past it."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.access import Entered, NamedBrokers
from namesrv.app.field_rules import ADDRESS, check
from namesrv.app.quotas import FairShares
from namesrv.core.errors import Reason
from namesrv.grpc_api.handlers import RequestMemory
from namesrv_common.endpoints import MAX_ADDRESS_LENGTH
from namesrv_common.server.shares import MACHINE
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.support.registrations import identity, registration
from tests.unit.namesrv.servicers import registration_servicer

ENTERED = Entered(None, MACHINE)


def test_an_address_may_have_260_characters_and_not_one_more() -> None:
    longest = "h" * (MAX_ADDRESS_LENGTH - len(":1")) + ":1"
    check(("broker.broker_addr", longest, ADDRESS))
    with refuses(Reason.INVALID_FIELD, match="has 261 characters, at most 260"):
        check(("broker.broker_addr", f"h{longest}", ADDRESS))


async def test_one_live_broker_too_many_is_refused_while_others_register_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_BROKERS", 2)
    servicer = registration_servicer(fleet)
    brokers = [identity(f"127.0.0.1:{port}", name=f"broker-{port}") for port in (1, 2, 3)]
    for broker in (*brokers[:2], *brokers[:2]):
        await servicer.RegisterBroker(registration(broker=broker), CONTEXT)
    before = fleet.state.revision
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        await servicer.RegisterBroker(registration(broker=brokers[2]), CONTEXT)
    assert caught.value.metadata == {"name": "live brokers", "value": "3", "limit": "2"}
    assert fleet.state.revision == before


def test_large_requests_are_taken_up_to_a_limit_and_small_ones_always() -> None:
    memory = RequestMemory(FairShares(request_bytes=3 * limits.MAX_MESSAGE_BYTES).request_bytes)
    taken = [memory.take(ENTERED, limits.MAX_MESSAGE_BYTES) for _ in range(3)]
    with refuses(Reason.OVERLOADED, match=f"over the limit of {3 * limits.MAX_MESSAGE_BYTES}"):
        memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1)
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES) == 0
    memory.give_back(ENTERED, taken.pop())
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1) == limits.SMALL_REQUEST_BYTES + 1


def test_permits_are_asked_about_no_more_groups_than_a_call_may_name(fleet: Fleet) -> None:
    request = pb.RegisterTopicRequest(queue_datas=[route_data_pb2.QueueData()] * 30_000)
    named = list(NamedBrokers(fleet.state).of(request))
    assert len(named) == limits.MAX_QUEUE_DATAS_PER_TOPIC + 1
