"""What one identity may do to its neighbours: nothing by how much it registers, nor by what it says is its own."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2 as pb

from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import data_version, identity, registration
from tests.support.secured.fleet import REGISTRATION, Place, connected, register

FLOOD = 150


def test_a_flood_of_ids_that_vanishes_holds_no_neighbours_dead_broker(place: Place) -> None:
    rights = {"look_up": True, "register": ["DefaultCluster/broker-b"]}
    place.permit(admin=rights, client=rights)
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "broker")) as attacker,
        connected(server.endpoint, place.files("token", "admin")) as honest,
        connected(server.endpoint, place.files("token", "client")) as neighbour,
    ):
        mine, slave = honest.open_channel(), neighbour.open_channel()
        victim = identity("127.0.0.1:10922", name="broker-b")
        assert register(honest, broker=victim, channel_id=mine.id) == "OK"
        other = identity("127.0.0.1:10923", broker_id=1, name="broker-b")
        assert register(neighbour, broker=other, channel_id=slave.id) == "OK"
        channel = attacker.open_channel()
        for number in range(FLOOD):
            faked = identity(f"127.0.0.1:{20_000 + number}", broker_id=number)
            assert register(attacker, broker=faked, channel_id=channel.id) == "OK"
        channel.close()
        eventually(lambda: server.events("broker_removed"), lambda lines: len(lines) == FLOOD)
        assert not server.events("mass_loss_guard")
        mine.close()
        eventually(lambda: [line for line in server.events("broker_removed") if line["addr"] == "127.0.0.1:10922"])


@pytest.mark.parametrize("restricted", [True, False], ids=["patterns name addresses", "patterns do not"])
def test_the_address_of_a_broker_that_is_down_is_kept_by_patterns_only(place: Place, *, restricted: bool) -> None:
    owners, attackers = ("@127.0.0.2", "@127.0.0.1") if restricted else ("", "")
    place.permit(
        admin={"register": [f"DefaultCluster/broker-b{owners}"]},
        broker={"register": [f"DefaultCluster/broker-a{attackers}"]},
    )
    victim, disguised = identity("127.0.0.2:10922", name="broker-b"), identity("127.0.0.2:10922")
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "admin")) as owner,
        connected(server.endpoint, place.files("token", "broker")) as attacker,
    ):
        assert register(owner, broker=victim) == "OK"
        owner.registration.UnregisterBroker(pb.UnregisterBrokerRequest(broker=victim), timeout=20)
        assert register(attacker, broker=disguised) == ("NOT_PERMITTED" if restricted else "OK")
        assert register(owner, broker=victim) == ("OK" if restricted else "NOT_PERMITTED"), "it is locked out"
        assert register(attacker, broker=identity("127.0.0.1:10911")) == "OK"


def test_a_pattern_with_addresses_holds_in_every_call_that_names_one(place: Place) -> None:
    place.permit(broker={"register": ["DefaultCluster/broker-a@127.0.0.1"]})
    elsewhere = identity("127.0.0.2:10911")
    requests: list[tuple[str, Message]] = [
        ("RegisterBroker", registration(broker=elsewhere)),
        ("UnregisterBroker", pb.UnregisterBrokerRequest(broker=elsewhere)),
        ("QueryDataVersion", pb.QueryDataVersionRequest(broker=elsewhere, data_version=data_version())),
        ("BrokerHeartbeat", pb.BrokerHeartbeatRequest(broker=elsewhere)),
    ]
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "broker")) as broker,
    ):
        for call, request in requests:
            error = broker.failure(REGISTRATION + call, request)
            assert error.reason == "NOT_PERMITTED", call
            assert (error.metadata["names"], error.metadata["address"]) == (
                "DefaultCluster/broker-a",
                "127.0.0.2:10911",
            )
        with_ha = registration()
        with_ha.ha_server_addr = "127.0.0.2:10912"  # it is about its own group only
        broker.registration.RegisterBroker(with_ha, timeout=20)
