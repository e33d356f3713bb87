"""What one identity may do to its neighbours: nothing by how much it registers, nor by what it says is its own."""

from __future__ import annotations

import json

from support.processes import NamesrvProcess, eventually
from support.registrations import identity
from support.secured import Place, connected, permits, register

FLOOD = 150


def test_a_flood_of_ids_that_vanishes_holds_no_neighbours_dead_broker(place: Place) -> None:
    rights = {"look_up": True, "register": ["DefaultCluster/broker-b"]}
    place.permits.write_text(json.dumps(permits(admin=rights, client=rights)))
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
