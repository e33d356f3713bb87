"""Who may call the service of namesrv_internal: real name servers and tokens."""

from __future__ import annotations

import pytest
from namesrv_internal.v1.diagnostics_service_pb2 import ListClientsRequest

from tests.support.programs.processes import NamesrvProcess
from tests.support.secured.fleet import LIVE_SECONDS, Place, connected, outcome


@pytest.mark.parametrize(("caller", "listed"), [("client", "NOT_PERMITTED"), ("admin", "OK")])
def test_diagnostics_need_to_look_up_and_lists_of_clients_to_administer(place: Place, caller: str, listed: str) -> None:
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", caller)) as client,
    ):
        assert outcome(client.told_diagnostics) == "OK"
        assert outcome(lambda: client.diagnostics.ListClients(ListClientsRequest(), timeout=LIVE_SECONDS)) == listed
