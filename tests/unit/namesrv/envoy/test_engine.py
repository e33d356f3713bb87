"""The server of the envoy engine where Envoy does not listen yet."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from namesrv.server.envoy.admin import ADMIN_SOCKET
from namesrv.server.envoy.engine import EnvoyServer
from namesrv.server.envoy.inside import Handed, Inside


def test_a_server_that_has_not_listened_stops_without_asking_envoy() -> None:
    """A worker listens with its first copy of the tables only, and may be told to end before. Envoy answers nobody."""
    asked: list[asyncio.StreamWriter] = []

    async def stopped(folder: Path) -> bool:
        async with await asyncio.start_unix_server(lambda _, writer: asked.append(writer), folder / ADMIN_SOCKET):
            server = EnvoyServer(Inside(folder, Handed({}, "127.0.0.1", 5, "/", None)), frozenset(), None)
            await server.stop(1.0)
            return not await server.wait_for_termination(5.0)

    with tempfile.TemporaryDirectory() as folder:  # its name is short enough for a socket's path
        assert asyncio.run(stopped(Path(folder)))
    assert asked == []
