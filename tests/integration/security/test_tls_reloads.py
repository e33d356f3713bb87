"""A client whose certificate changes again and again closes the connections of the old ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from namesrv_common.client.channels import ClientFiles, ClientSecurity, open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.tls.listener_tls import ListenerFiles, ListenerTls
from tests.support.programs.processes import eventually
from tests.support.secured.certificates import Authority, Files

MAX_MORE_FILES = 12
ECHO, STREAM = "/test.Echo/Say", "/test.Echo/Listen"


async def _say(request: bytes, _context: Any) -> bytes:
    return request


async def _listen(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield request
    await asyncio.Event().wait()


async def test_a_blocking_client_closes_connections_that_are_out_of_date(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ListenerTls(ListenerFiles(*authority.sign_server(), authority.path))
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(_say),
        "Listen": grpc.unary_stream_rpc_method_handler(_listen),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    endpoint = Endpoint("127.0.0.1", server.add_secure_port("127.0.0.1:0", tls.credentials()))
    await server.start()
    await asyncio.to_thread(_use_blocking_client, authority, endpoint)
    await server.stop(0)


def _use_blocking_client(authority: Authority, endpoint: Endpoint) -> None:
    pairs = [authority.sign("client", ["client.example"], file_name=f"client{i}") for i in range(2)]
    contents = itertools.cycle([[path.read_bytes() for path in pair] for pair in pairs])
    files = Files(authority.folder / "now.pem", authority.folder / "now.key")

    def change_certificate() -> None:
        for path, content in zip(files, next(contents), strict=True):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(content)
            fresh.replace(path)

    change_certificate()
    looks = itertools.count(0.0, 10.0)  # a clock on which it is always time for another look
    security = ClientSecurity(ClientFiles(authority.path, *files), lambda: next(looks))
    with open_channel(endpoint, (), security) as connection:
        say = connection.unary_unary(ECHO, None, None)
        stream: Any = connection.unary_stream(STREAM, None, None)(b"stream")
        assert next(stream) == b"stream"
        first = _open_files()
        for _ in range(50):
            change_certificate()
            security.generation()
            assert say(b"unary", timeout=20) == b"unary"
            assert say.future(b"later", timeout=20).result() == b"later"
            assert say.with_call(b"both", timeout=20)[0] == b"both"
        eventually(lambda: (say(b"", timeout=20), _open_files())[1], lambda files: files <= first + MAX_MORE_FILES)
        assert stream.is_active()
        stream.cancel()


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
