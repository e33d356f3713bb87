"""What the settings come to for an engine."""

from __future__ import annotations

import pytest

from namesrv.engines.grpcio import build_server
from namesrv.settings import NamesrvSettings


@pytest.mark.parametrize(
    ("caller", "of_address"), [(50, (62_250, 64 * 1024 * 1024)), (100, (124_500, 128 * 1024 * 1024))]
)
def test_one_address_may_have_a_share_of_the_calls_and_of_the_bytes_of_requests(
    caller: int, of_address: tuple[int, int]
) -> None:
    pytest.importorskip("namesrv_engine", reason="the native engine is not installed")
    from namesrv.engines.native import NativeServer  # noqa: PLC0415 - as above

    shares = {"max_connections": 1_000, "caller_share_percent": caller, "kept_share_percent": 0}
    server = build_server("native", NamesrvSettings.load(None, shares))
    assert isinstance(server, NativeServer)
    bounds = server.options
    assert bounds.max_connections == 1_000, "there are descriptors for so many"
    assert (bounds.calls_of_address, bounds.bytes_of_address) == of_address
