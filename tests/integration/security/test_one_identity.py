"""What one identity may do to its neighbours: nothing by how much it registers, nor by what it says is its own."""

from __future__ import annotations

from pathlib import Path

from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import registration_service_pb2 as pb
from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import identity
from tests.support.secured.fleet import Place, connected, register

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


def nsctl(*arguments: str) -> str:
    """What a command about addresses shows."""
    done = CliRunner().invoke(app, ["address", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_the_address_of_a_broker_that_is_down_is_not_for_the_taking(place: Place, tmp_path: Path) -> None:
    rights = {"look_up": True, "administer": True, "register": ["DefaultCluster/broker-b"]}
    place.permit(admin=rights)
    victim, taker = identity("127.0.0.1:10922", name="broker-b"), identity("127.0.0.1:10922")
    flags = (*place.flags("token"), "--data-dir", str(tmp_path / "data"))
    with NamesrvProcess(*flags) as server, connected(server.endpoint, place.files("token", "admin")) as owner:
        channel = owner.open_channel()
        assert register(owner, broker=victim, channel_id=channel.id) == "OK"
        channel.close()
        eventually(lambda: server.events("broker_removed"))
        with connected(server.endpoint, place.files("token", "broker")) as broker:
            assert register(broker, broker=taker) == "NOT_PERMITTED"
        assert server.terminate() == 0
    with (
        NamesrvProcess(*flags) as server,
        connected(server.endpoint, place.files("token", "admin")) as owner,
        connected(server.endpoint, place.files("token", "broker")) as broker,
    ):
        assert register(broker, broker=taker) == "NOT_PERMITTED"
        claims = owner.admin.ListAddressClaims(admin_service_pb2.ListAddressClaimsRequest(), timeout=20).address_claims
        assert [(claim.broker_addr, claim.broker_name) for claim in claims] == [("127.0.0.1:10922", "broker-b")]
        assert claims[0].ends_at_millis - claims[0].since_millis == 86_400_000
        assert register(owner, broker=victim) == "OK"
        owner.registration.UnregisterBroker(pb.UnregisterBrokerRequest(broker=victim), timeout=20)
        release = admin_service_pb2.ReleaseAddressClaimRequest(
            cluster_name="DefaultCluster", broker_addr="127.0.0.1:10922", comment="given away", validate_only=True
        )
        assert owner.admin.ReleaseAddressClaim(release, timeout=20).released
        assert register(broker, broker=taker) == "NOT_PERMITTED"
        shown = ["--namesrv", str(server.endpoint), "--tls-ca", str(place.authority.path)]
        shown += ["--token-file", str(place.tokens["admin"])]
        assert "127.0.0.1:10922" in nsctl("claims", *shown)
        nsctl("release", "DefaultCluster", "127.0.0.1:10922", "--why", "given away", *shown)
        assert "127.0.0.1:10922" not in nsctl("claims", *shown)
        assert register(broker, broker=taker) == "OK"
        release.validate_only = False
        assert not owner.admin.ReleaseAddressClaim(release, timeout=20).released
        asked = admin_service_pb2.ListAuditEntriesRequest(broker_name="broker-b")
        entry = owner.admin.ListAuditEntries(asked, timeout=20).entries[0]
        assert (entry.cause, entry.caller, entry.comment) == ("ReleaseAddressClaim", "admin", "given away")
        assert entry.summary == "broker-b of DefaultCluster: claim to 127.0.0.1:10922 (id 0) released"
        assert server.terminate() == 0  # all that it logged is there
        assert [line["caller"] for line in server.events("address_claim_released")] == ["admin"]
