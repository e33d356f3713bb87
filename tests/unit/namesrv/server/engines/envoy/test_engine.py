"""The server of the envoy engine, with an Envoy that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest

from namesrv.server.engines.envoy import engine
from namesrv.server.engines.envoy.admin import ADMIN_SOCKET
from namesrv.server.engines.envoy.engine import EnvoyServer
from namesrv.server.engines.envoy.inside import Handed, Inside
from namesrv.server.engines.envoy.messages import framed

HEADERS = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
PATH, CHANNEL = "/a.B/Stream", "/a.B/Channel"
OK, RESOURCE_EXHAUSTED = b"0", b"8"


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


class Reader:
    """A request for a stream, as pyvoy hands it over, from a client that takes messages when it is told to."""

    def __init__(self, path: str = PATH) -> None:
        self.scope = {"path": path, "headers": list(HEADERS), "client": ("127.0.0.1", 7)}
        self.status: bytes | None = None
        self.taking = asyncio.get_running_loop().create_future()

    def receive(self) -> asyncio.Future[Any]:
        request = asyncio.get_running_loop().create_future()
        request.set_result({"type": "http.request", "body": framed(b""), "more_body": False})
        return request

    def send(self, event: Any) -> asyncio.Future[None]:
        self.status = dict(event.get("headers", ())).get(b"grpc-status", self.status)
        if event.get("more_body"):
            return self.taking
        taken = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken


async def told_once(_request: bytes, context: Any) -> None:
    """A stream of one message, whose reader is cut at once if it takes nothing."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await context.write(b"message")


def test_streams_that_ended_unread_are_bounded_until_their_readers_take_them_or_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "MAX_UNREAD", 2)

    async def play() -> None:
        server = EnvoyServer(Inside(tmp_path, Handed({}, "127.0.0.1", 5, "/", None)), frozenset({CHANNEL}), None)
        handler = grpc.unary_stream_rpc_method_handler(told_once)
        server.add_registered_method_handlers("a.B", {"Stream": handler, "Channel": handler})

        async def status(reader: Reader) -> bytes | None:
            await asyncio.create_task(server.answer(reader.scope, reader.receive, reader.send))
            return reader.status

        cut = [Reader(), Reader()]
        for reader in cut:
            assert await status(reader) == OK
        assert await status(Reader()) == RESOURCE_EXHAUSTED
        assert await status(Reader(CHANNEL)) == OK, "channels of brokers are not refused"
        cut[0].taking.set_result(None)
        cut[1].taking.set_exception(OSError("the client has gone"))
        await asyncio.sleep(0)
        assert await status(Reader()) == OK

    asyncio.run(play())
