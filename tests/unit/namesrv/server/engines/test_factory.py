"""What the settings come to for an engine."""

from __future__ import annotations

import pytest

from namesrv.engines.grpcio import build_server
from namesrv.settings import NamesrvSettings
from tests.support.engines import LEFT_OUT


def test_native_has_no_more_connections_than_there_are_descriptors() -> None:
    pytest.importorskip("namesrv_engine", reason=LEFT_OUT)
    from namesrv.engines.native import NativeServer  # noqa: PLC0415 - as above

    server = build_server("native", NamesrvSettings.load(None, {"max_connections": 1_000}))
    assert isinstance(server, NativeServer)
    assert server.options.max_connections == 1_000, "there are descriptors for so many"
