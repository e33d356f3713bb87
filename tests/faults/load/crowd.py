"""Thousands of connections of one process that do what HTTP/2 asks of them and nothing more, until they are ended.

``python -m tests.faults.load.crowd PORT COUNT`` says in a line of JSON that all are there, in another how they ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from enum import StrEnum, auto

from groundwork.program import use_all_descriptors
from tests.faults.load.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HOST,
    LOOKUP,
    PING,
    ROUTE,
    SETTINGS,
    WATCH,
    call,
    frame,
    headers,
    hello,
)

ACK = 0x1
GOAWAY = 0x7
HEAD_BYTES = 9
OPENED_AT_ONCE = 50
MOST_SECONDS = 300.0
"""A crowd that nobody ends goes by itself."""


class Kind(StrEnum):
    """What a connection has under way."""

    IDLE = auto()
    WATCHING = auto()
    """A watch of a topic."""
    ASKING = auto()
    """A lookup of which the message comes after the farewell."""


KINDS = (Kind.WATCHING, Kind.ASKING, *[Kind.IDLE] * 8)
"""Of each ten connections."""


class Member(asyncio.Protocol):
    """A connection."""

    transport: asyncio.Transport

    def __init__(self, kind: Kind, on_there: Callable[[], None], on_over: Callable[[], None]) -> None:
        self.kind = kind
        self.told_to_go = self.call_ended = self.over = False
        self._there = self._answered = False
        self._on_there, self._on_over = on_there, on_over
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        opening = {
            Kind.IDLE: b"",
            Kind.WATCHING: call(WATCH, 1, ROUTE),
            Kind.ASKING: frame(HEADERS, END_HEADERS, 1, headers(LOOKUP)),
        }
        transport.write(hello() + opening[self.kind])

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= HEAD_BYTES and len(data) >= (end := HEAD_BYTES + int.from_bytes(data[:3], "big")):
            self._on_frame(data[3], data[4], data[HEAD_BYTES:end])
            data = data[end:]
        self._rest = data

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._on_over()

    def _on_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0))
            if not self._there:
                self._there = True
                self._on_there()
        elif kind == GOAWAY:
            if self.kind is Kind.ASKING and not self.told_to_go:
                self.transport.write(frame(DATA, END_STREAM, 1, b"\0\0\0\0\x0b" + ROUTE))
            self.told_to_go = True
        elif kind == DATA:
            self._answered = True
        elif kind == HEADERS and flags & END_STREAM:
            self.call_ended = self._answered  # a call that is refused has a status alone


async def _run(port: int, count: int) -> None:
    members: list[Member] = []
    there, over, all_there, all_over = Counter[str](), Counter[str](), asyncio.Event(), asyncio.Event()

    def one_more(counter: Counter[str], event: asyncio.Event) -> None:
        counter["of all"] += 1
        if counter["of all"] == count:
            event.set()

    def join(number: int) -> Member:
        kind = KINDS[number % len(KINDS)]
        return Member(kind, lambda: one_more(there, all_there), lambda: one_more(over, all_over))

    loop = asyncio.get_running_loop()
    for first in range(0, count, OPENED_AT_ONCE):
        some = [
            loop.create_connection(lambda number=number: join(number), HOST, port)  # type: ignore[misc]
            for number in range(first, min(count, first + OPENED_AT_ONCE))
        ]
        members += [member for _, member in await asyncio.gather(*some)]
    await all_there.wait()
    _tell("crowd_there", connections=count)
    await all_over.wait()
    calling = [member for member in members if member.kind is not Kind.IDLE]
    _tell(
        "crowd_over",
        told_to_go=sum(member.told_to_go for member in members),
        calls=len(calling),
        calls_ended=sum(member.call_ended for member in calling),
    )


def _tell(event: str, **fields: int) -> None:
    sys.stderr.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stderr.flush()


async def _bounded(port: int, count: int) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        await _run(port, count)


if __name__ == "__main__":
    use_all_descriptors()
    asyncio.run(_bounded(int(sys.argv[1]), int(sys.argv[2])))
