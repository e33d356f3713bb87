"""Certificates that change a thousand times, on both ends of connections that are in use."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from namesrv_common.client.channels import ClientFiles, ClientSecurity, open_aio_channel, open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.tls.listener_tls import ListenerFiles, ListenerTls
from tests.support.programs.processes import eventually
from tests.support.secured.certificates import Authority, Files

RELOADS = 1_000
WARM_UP = 200
"""Reloads until allocators and pools have what they keep."""
MAX_GROWTH_MIB = 24
MAX_MORE_FILES = 12

ECHO, STREAM = "/test.Echo/Say", "/test.Echo/Listen"


class Ticking:
    """A clock on which it is always time for another look."""

    def __init__(self) -> None:
        self._ticks = itertools.count(0.0, 10.0)

    def __call__(self) -> float:
        return next(self._ticks)


class Rotating:
    """A pair of files whose content is one of several pairs in turn."""

    def __init__(self, folder: Path, name: str, pairs: list[Files]) -> None:
        self.files = Files(folder / f"{name}.now.pem", folder / f"{name}.now.key")
        self._pairs = itertools.cycle([(pair.certificate.read_bytes(), pair.key.read_bytes()) for pair in pairs])
        self.turn()

    def turn(self) -> None:
        """Replaces both files."""
        for path, content in zip(self.files, next(self._pairs), strict=True):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(content)
            fresh.replace(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def rotating(authority: Authority) -> tuple[Rotating, Rotating]:
    """The pair of a listener, and that of a client."""
    servers = [authority.sign("localhost", ips=["127.0.0.1"], file_name=f"server{i}") for i in range(2)]
    clients = [authority.sign("client", ["client.example"], file_name=f"client{i}") for i in range(2)]
    return Rotating(authority.folder, "server", servers), Rotating(authority.folder, "client", clients)


async def _say(request: bytes, _context: Any) -> bytes:
    return request


async def _listen(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request
    await asyncio.Event().wait()


async def _started(tls: ListenerTls) -> tuple[grpc.aio.Server, Endpoint]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(_say),
        "Listen": grpc.unary_stream_rpc_method_handler(_listen),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    await server.start()
    return server, Endpoint("127.0.0.1", port)


def _held() -> tuple[int, int]:
    """Open files, and MiB of memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return len(list(Path("/proc/self/fd").iterdir())), pages * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.slow
async def test_a_thousand_reloads_leak_nothing(authority: Authority, rotating: tuple[Rotating, Rotating]) -> None:
    of_server, of_client = rotating
    tls = ListenerTls(ListenerFiles(*of_server.files, authority.path), Ticking())
    security = ClientSecurity(ClientFiles(authority.path, *of_client.files), Ticking())
    server, endpoint = await _started(tls)
    async with open_aio_channel(endpoint, (), security) as connection:
        stream = connection.unary_stream(STREAM, None, None)(b"stream")
        assert await stream.read() == b"stream"
        say = connection.unary_unary(ECHO, None, None)
        before = (0, 0)
        for count in range(RELOADS):
            if count == WARM_UP:
                before = _held()
            for pair in (of_server, of_client):
                pair.turn()
            for look in (tls.look, security.generation):
                look()
                look()
            assert await say(b"unary", timeout=20) == b"unary"
        assert tls._loaded.generation == security.generation() == RELOADS + 1
        assert not stream.done(), "what is under way goes on over the connection that it began on"
        files, mebibytes = _held()
        assert files - before[0] <= MAX_MORE_FILES
        assert mebibytes - before[1] <= MAX_GROWTH_MIB
        stream.cancel()
    await server.stop(0)


async def test_a_blocking_client_closes_connections_that_are_out_of_date(
    authority: Authority, rotating: tuple[Rotating, Rotating]
) -> None:
    of_server, of_client = rotating
    server, endpoint = await _started(ListenerTls(ListenerFiles(*of_server.files, authority.path)))
    await asyncio.to_thread(_use_blocking_client, authority, endpoint, of_client)
    await server.stop(0)


def _use_blocking_client(authority: Authority, endpoint: Endpoint, of_client: Rotating) -> None:
    security = ClientSecurity(ClientFiles(authority.path, *of_client.files), Ticking())
    with open_channel(endpoint, (), security) as connection:
        say = connection.unary_unary(ECHO, None, None)
        stream: Any = connection.unary_stream(STREAM, None, None)(b"stream")
        assert next(stream) == b"stream"
        first = _held()[0]
        for _ in range(50):
            of_client.turn()
            security.generation()
            assert say(b"unary", timeout=20) == b"unary"
            assert say.future(b"later", timeout=20).result() == b"later"
            assert say.with_call(b"both", timeout=20)[0] == b"both"
        eventually(lambda: (say(b"", timeout=20), _held()[0])[1], lambda files: files <= first + MAX_MORE_FILES)
        assert stream.is_active()
        stream.cancel()
