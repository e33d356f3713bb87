"""What the settings come to for an engine."""

from __future__ import annotations

import pytest

from namesrv.engines.grpcio import build_server
from namesrv.settings import NamesrvSettings


@pytest.mark.parametrize(
    ("caller", "kept", "of_address", "kept_connections"), [(50, 20, 500, 200), (100, 0, 1_000, 0), (1, 90, 10, 900)]
)
def test_one_address_may_have_a_share_of_the_connections_and_some_are_kept_for_this_machine(
    caller: int, kept: int, of_address: int, kept_connections: int
) -> None:
    pytest.importorskip("namesrv_engine", reason="the native engine is not installed")
    from namesrv.engines.native import NativeServer  # noqa: PLC0415 - as above

    shares = {"max_connections": 1_000, "caller_share_percent": caller, "kept_share_percent": kept}
    server = build_server("native", NamesrvSettings.load(None, shares))
    assert isinstance(server, NativeServer)
    bounds = server.options
    assert bounds.max_connections == 1_000, "there are descriptors for so many"
    assert (bounds.max_connections_of_address, bounds.kept_connections) == (of_address, kept_connections)
