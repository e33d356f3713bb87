"""Entries that no broker has confirmed: they are served, and they win no conflict with a broker that registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.app.access import NamedBrokers
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, Doubt
from namesrv.core.policy import Behaviour
from namesrv.core.removals import on_channel_destroy
from namesrv_common.server.permits import NamedBroker
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_all_now
from tests.unit.namesrv.scenarios.groups import version

SLAVE = "127.0.0.1:30911"
HELD_VERSION = version(1, state_version=9)
FEW = Behaviour(mass_loss_min_brokers=3)
Doubtful = Callable[[], Fleet]
"""Makes a fleet in which A is master of broker-a, has state version 9, and nobody has confirmed that."""


def held_by_the_guard() -> Fleet:
    fleet = Fleet(FEW)
    channels = [fleet.heartbeats.open_channel() for _ in range(4)]
    fleet.register(A, version=HELD_VERSION, channel_id=channels[0], ha="127.0.0.1:10912")
    for number in (1, 2, 3):
        fleet.register(f"10.0.0.{number}:10911", 0, ("Other",), name=f"broker-{number}", channel_id=channels[number])
    for channel in channels:
        fleet.heartbeats.end_channel(channel)
    assert apply_all_now(on_channel_destroy(fleet.state, channels)) == []
    return fleet


def restored_from_a_snapshot() -> Fleet:
    before, fleet = Fleet(), Fleet()
    before.register(A, version=HELD_VERSION, ha="127.0.0.1:10912")
    fleet.state.load_snapshot(before.state.snapshot().messages())
    return fleet


def doubted(why: Doubt) -> Fleet:
    fleet = Fleet()
    channel = fleet.heartbeats.open_channel()
    fleet.register(A, version=HELD_VERSION, channel_id=channel, ha="127.0.0.1:10912")
    fleet.heartbeats.end_channel(channel)
    fleet.heartbeats.doubt_channel_end(channel, 60.0, why)
    return fleet


WAYS: dict[str, Doubtful] = {
    "held": held_by_the_guard,
    "restored": restored_from_a_snapshot,
    **{why.label: partial(doubted, why) for why in Doubt if not why.is_unconfirmed},
}


@pytest.fixture(params=list(WAYS))
def fleet(request: pytest.FixtureRequest) -> Fleet:
    made = WAYS[request.param]()
    assert made.addrs()[0] == A
    return made


def test_a_live_master_wins_over_an_entry_without_proof(fleet: Fleet) -> None:
    result = fleet.register(B, version=version(1, state_version=1))
    assert [gone.live.broker_addr for gone in result.replaced] == [A]
    assert fleet.addrs() == {0: B}


def test_an_entry_that_is_confirmed_again_wins_over_a_lower_version(fleet: Fleet) -> None:
    fleet.register(A, version=HELD_VERSION)
    with refuses(Reason.STALE_STATE_VERSION):
        fleet.register(B, version=version(1, state_version=1))
    assert fleet.addrs() == {0: A}


def test_the_master_with_the_higher_version_takes_its_id_back(fleet: Fleet) -> None:
    fleet.register(B, version=version(1, state_version=1))
    fleet.register(A, version=HELD_VERSION)
    assert fleet.addrs() == {0: A}


def test_a_slave_is_told_the_master_only_once_that_is_confirmed(fleet: Fleet) -> None:
    told = fleet.register(SLAVE, 1, version=version(1))
    assert (told.master_addr, told.ha_server_addr) == (None, None)
    fleet.register(A, version=HELD_VERSION, ha="127.0.0.1:10912")
    told = fleet.register(SLAVE, 1, version=version(2))
    assert (told.master_addr, told.ha_server_addr) == (A, "127.0.0.1:10912")


def test_the_address_of_an_entry_without_proof_is_free_for_others(fleet: Fleet) -> None:
    identity = route_data_pb2.BrokerIdentity(cluster_name=CLUSTER, broker_name="broker-b", broker_addr=A)
    asked = pb.RegisterBrokerRequest(broker=identity)
    claimed = NamedBroker((CLUSTER, "broker-b"), A)
    assert list(NamedBrokers(fleet.state).of(asked)) == [claimed]
    fleet.register(A, version=HELD_VERSION)
    assert list(NamedBrokers(fleet.state).of(asked)) == [claimed, NamedBroker(BrokerKey(CLUSTER, "broker-a"), A)]
