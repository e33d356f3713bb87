"""Who an address is for while the broker that had it is down."""

from __future__ import annotations

from namesrv.core.address_claims import MAX_CLAIMS_OF_GROUP, AddressClaim
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.policy import Behaviour
from tests.support.core_fleet import CLUSTER, A, B, Fleet

DAY = 86_400.0


def claiming_fleet(seconds: float = DAY) -> Fleet:
    return Fleet(Behaviour(address_claim_seconds=seconds))


def holder(fleet: Fleet, addr: str) -> str | None:
    claim = fleet.state.address_claims.at(LiveKey(CLUSTER, addr))
    return None if claim is None else claim.broker.broker_name


def test_a_broker_that_left_keeps_its_address_for_a_time() -> None:
    fleet = claiming_fleet()
    fleet.register(A)
    assert holder(fleet, A) is None
    fleet.unregister(A)
    fleet.clock.advance(DAY - 0.001)
    assert holder(fleet, A) == "broker-a"
    fleet.clock.advance(0.001)
    assert holder(fleet, A) is None
    assert not fleet.state.address_claims.in_force()


def test_brokers_that_vanish_keep_theirs_however_they_go() -> None:
    fleet = claiming_fleet()
    channel = fleet.routes.heartbeats.open_channel()
    fleet.register(A, channel_id=channel)
    fleet.register(B, name="broker-b")
    fleet.end_channel(channel)
    fleet.clock.advance(121)
    fleet.scan()
    claims = fleet.state.address_claims.in_force()
    assert [claim.broker.broker_name for claim in claims] == ["broker-a", "broker-b"]


def test_a_claim_ends_when_the_broker_is_back_there_or_elsewhere() -> None:
    for back in (A, B):
        fleet = claiming_fleet()
        fleet.register(A)
        fleet.unregister(A)
        fleet.register(back)
        assert not len(fleet.state.address_claims)


def test_a_broker_that_moves_to_another_address_claims_none() -> None:
    fleet = claiming_fleet()
    fleet.register(A)
    fleet.register(B)
    assert holder(fleet, A) is None


def test_another_group_that_may_take_the_address_takes_the_claim_too() -> None:
    fleet = claiming_fleet()
    fleet.register(A)
    fleet.unregister(A)
    fleet.register(A, name="broker-b")
    fleet.unregister(A, name="broker-b")
    assert holder(fleet, A) == "broker-b"


def test_without_permits_there_are_no_claims() -> None:
    fleet = claiming_fleet(0.0)
    fleet.register(A)
    fleet.unregister(A)
    assert holder(fleet, A) is None


def test_a_group_claims_so_many_addresses_and_not_those_of_a_network() -> None:
    fleet = claiming_fleet()
    fleet.register(B, name="broker-b")
    fleet.unregister(B, name="broker-b")
    for number in range(MAX_CLAIMS_OF_GROUP + 10):
        fleet.register(f"10.0.0.{number}:1", number)
        fleet.unregister(f"10.0.0.{number}:1")
    claims = fleet.state.address_claims
    assert len(claims) == MAX_CLAIMS_OF_GROUP + 1
    assert holder(fleet, B) == "broker-b"
    assert holder(fleet, "10.0.0.9:1") is None
    assert holder(fleet, "10.0.0.10:1") == "broker-a"


def test_claims_of_a_former_process_last_no_longer_than_new_ones() -> None:
    key = LiveKey(CLUSTER, A)
    former = AddressClaim(key, BrokerKey(CLUSTER, "broker-a"), 0, 0, 2**62)
    fleet, off = claiming_fleet(), claiming_fleet(0.0)
    for each in (fleet, off):
        each.state.address_claims.load([former], each.state.behaviour.address_claim_seconds)
    assert not len(off.state.address_claims)
    fleet.clock.advance(DAY)
    assert holder(fleet, A) is None
