"""The callers of the service of namesrv_internal: real name servers and tokens."""

from __future__ import annotations

from tests.support.programs.processes import NamesrvProcess
from tests.support.secured.fleet import Place, connected, outcome


def test_diagnostics_need_the_permission_to_look_up(place: Place) -> None:
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "client")) as client,
    ):
        assert outcome(client.told_diagnostics) == "OK"
