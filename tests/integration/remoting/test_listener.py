"""The listener by itself: at its limit, it closes connections that never asked anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from groundwork.endpoints import Endpoint
from groundwork.shares import Shares
from namesrv.app.counters import RemotingCounter
from namesrv.app.event_log import LINE_BURST
from namesrv.remoting import listener as listener_module
from namesrv.remoting.calls import Calls
from namesrv.remoting.listener import RemotingListener
from namesrv.remoting.wire.headers import answer
from tests.support.programs.rocketmq import frame

MOST = 3
SECONDS = 20.0
LOOKUP = frame(105, {"topic": "T"})
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(most: int = MOST) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """A listener of so many connections; yields what connects to it."""
    calls = Calls({105: lambda request, _: answer(request, 17)}, {})
    listener = RemotingListener(
        Endpoint("127.0.0.1", 0),
        calls,
        RemotingCounter(),
        tls=None,
        tls_mode="disabled",
        slow_reader_seconds=10,
        request_bytes=Shares("bytes", 1_000_000),
        shares=Shares("connections", most),
    )
    running = asyncio.create_task(listener.run())
    opened: list[Peer] = []

    async def connect() -> Peer:
        opened.append(await asyncio.open_connection(*listener.endpoint))
        return opened[-1]

    try:
        yield connect
    finally:
        for _, writer in opened:
            writer.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await listener.close(0)


async def is_answered(peer: Peer) -> bool:
    """Whether a lookup over a connection is answered."""
    reader, writer = peer
    with contextlib.suppress(ConnectionError):
        writer.write(LOOKUP)
        return await asyncio.wait_for(reader.read(1), SECONDS) != b""
    return False


def lines_of(test: Callable[[], Awaitable[None]]) -> list[Any]:
    """Runs a test, and returns the lines about connections that were ended."""
    with capture_logs() as lines:
        asyncio.run(test())  # type: ignore[arg-type]
    return [line for line in lines if line["event"] == "remoting_connection_ended"]


def test_connections_that_never_asked_anything_give_way_to_one_that_does() -> None:
    async def test() -> None:
        async with listening() as connect:
            honest = await connect()
            assert await is_answered(honest)
            silent = [await connect() for _ in range(5 * MOST)]
            newcomer = await connect()
            assert await is_answered(newcomer)
            assert await is_answered(honest)
            assert await asyncio.wait_for(silent[0][0].read(), SECONDS) == b""

    lines = lines_of(test)
    assert "asked nothing" in lines[0]["problem"]
    assert len(lines) <= LINE_BURST


def test_those_that_ask_keep_their_places_and_one_more_is_closed() -> None:
    async def test() -> None:
        async with listening() as connect:
            honest = [await connect() for _ in range(MOST)]
            assert all([await is_answered(one) for one in honest])
            assert not await is_answered(await connect())
            assert all([await is_answered(one) for one in honest])

    (line,) = lines_of(test)
    assert line["problem"] == f"connections: {MOST + 1} is over the limit of {MOST} for all"


def test_one_address_takes_its_share_and_not_the_places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address has half of the connections at most. The rest is closed at once."""
    peers = [*(f"10.0.0.1:{port}" for port in range(8)), "10.0.0.2:1"]
    monkeypatch.setattr(listener_module, "_peer", lambda _: peers.pop(0))  # on loopback all are this machine's

    async def test() -> None:
        async with listening(10) as connect:
            taken = [await connect() for _ in range(5)]
            assert all([await is_answered(one) for one in taken])
            assert not any([await is_answered(await connect()) for _ in range(3)])
            assert await is_answered(await connect())
            assert all([await is_answered(one) for one in taken])

    problems = {(line["peer"].partition(":")[0], line["problem"]) for line in lines_of(test)}
    assert problems == {("10.0.0.1", "connections: 6 is over the limit of 5 for 10.0.0.1")}


@pytest.mark.parametrize("count", [3 * LINE_BURST])
def test_a_flood_of_broken_connections_makes_few_lines_that_count_the_others(count: int) -> None:
    async def test() -> None:
        async with listening() as connect:
            for _ in range(count):
                reader, writer = await connect()
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), SECONDS) == b""

    assert LINE_BURST <= len(lines_of(test)) < count
