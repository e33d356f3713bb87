"""Who may call the services of namesrv_internal: real name servers and tokens."""

from __future__ import annotations

from typing import Any

import pytest
from namesrv_internal.v1.diagnostics_service_pb2 import ListClientsRequest
from namesrv_internal.v1.replica_service_pb2 import FollowTablesRequest

from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.secured.fleet import LIVE_SECONDS, Place, connected, outcome


def follow(client: Client) -> None:
    """Reads the first message of a copy's stream."""
    stream: Any = client.replica.FollowTables(FollowTablesRequest(), timeout=LIVE_SECONDS)
    next(stream)
    stream.cancel()


@pytest.mark.parametrize(("caller", "copies"), [("client", "NOT_PERMITTED"), ("admin", "OK")])
def test_diagnostics_need_to_look_up_and_copies_and_lists_of_clients_to_administer(
    place: Place, caller: str, copies: str
) -> None:
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", caller)) as client,
    ):
        assert outcome(client.told_diagnostics) == "OK"
        assert outcome(lambda: client.diagnostics.ListClients(ListClientsRequest(), timeout=LIVE_SECONDS)) == copies
        assert outcome(lambda: follow(client)) == copies
