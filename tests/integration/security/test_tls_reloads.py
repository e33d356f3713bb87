"""A client whose certificate changes again and again closes the connections of the old ones."""

from __future__ import annotations

import asyncio
import itertools
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

MAX_MORE_FILES = 12
ECHO, STREAM = "/test.Echo/Say", "/test.Echo/Listen"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def _say(request: bytes, _context: Any) -> bytes:
    return request


async def _listen(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request
    await asyncio.Event().wait()


@pytest.fixture
async def endpoint(authority: Authority) -> AsyncIterator[Endpoint]:
    tls = ListenerTls(ListenerFiles(*authority.sign_server(), authority.path))
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(_say),
        "Listen": grpc.unary_stream_rpc_method_handler(_listen),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    await server.start()
    yield Endpoint("127.0.0.1", port)
    await server.stop(0)


class Changing(ClientSecurity):
    """Credentials that change at each ``change``."""

    def __init__(self, authority: Authority) -> None:
        pairs = [authority.sign("client", ["client.example"], file_name=f"client{i}") for i in range(2)]
        self._contents = itertools.cycle([[path.read_bytes() for path in pair] for pair in pairs])
        self._now = Files(authority.folder / "now.pem", authority.folder / "now.key")
        self.change()
        looks = itertools.count(0.0, 10.0)  # a clock on which it is always time for another look
        super().__init__(ClientFiles(authority.path, *self._now), lambda: next(looks))

    def change(self) -> None:
        for path, content in zip(self._now, next(self._contents), strict=True):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(content)
            fresh.replace(path)


async def test_a_blocking_client_closes_connections_that_are_out_of_date(
    authority: Authority, endpoint: Endpoint
) -> None:
    def use() -> None:
        security = Changing(authority)
        with open_channel(endpoint, (), security) as connection:
            say = connection.unary_unary(ECHO, None, None)
            stream: Any = connection.unary_stream(STREAM, None, None)(b"stream")
            assert next(stream) == b"stream"
            first = _open_files()
            for _ in range(50):
                security.change()
                security.generation()
                assert say(b"unary", timeout=20) == b"unary"
            assert security.generation() > 40
            eventually(_open_files, lambda files: files <= first + MAX_MORE_FILES)
            assert stream.is_active()
            stream.cancel()

    await asyncio.to_thread(use)


async def test_an_asyncio_client_closes_connections_that_are_out_of_date(
    authority: Authority, endpoint: Endpoint
) -> None:
    security = Changing(authority)
    connection = open_aio_channel(endpoint, (), security)
    say = connection.unary_unary(ECHO, None, None)
    stream: Any = connection.unary_stream(STREAM, None, None)(b"stream")
    assert await stream.read() == b"stream"
    first = _open_files()
    for _ in range(50):
        security.change()
        security.generation()
        assert await say(b"unary", timeout=20) == b"unary"
    assert security.generation() > 40
    await asyncio.to_thread(eventually, _open_files, lambda files: files <= first + MAX_MORE_FILES)
    assert not stream.done()
    await connection.close(None)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
