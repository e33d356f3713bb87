"""Attacks by the rules of HTTP/2 and HPACK: each frame is allowed, their number or their order is not meant."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from tests.faults.attack.registry import on
from tests.support.hostile.frames import (
    DATA,
    END_HEADERS,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LOOKUP,
    REGISTER,
    ROUTE,
    RST_STREAM,
    SETTINGS,
    SNAPSHOT,
    WATCH,
    WINDOW_UPDATE,
    call,
    connections,
    field,
    frame,
    headers,
    hello,
    hold,
)

CANCEL = (8).to_bytes(4, "big")
ONE_MORE = (1).to_bytes(4, "big")
NEWEST_ENTRY = b"\xbe"
"""A reference of HPACK to what was put into the table last."""
PRIORITY, UNKNOWN = 0x2, 0x63

MANY_CONNECTIONS = 1_000
FLOODING = 8
FEW_RESETS = 49
"""One below what many servers count as too many on one connection."""
HALF_BYTES = 200_000


class _Flooded:
    """A connection over which whole frames go, however little of them is taken at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.turn = 0
        self._rest = b""

    def step(self, again: Callable[[int], bytes]) -> bool:
        """Sends what can be sent at once, and reads what has come. False if the server has ended the connection."""
        if not self._rest:
            self._rest, self.turn = again(self.turn), self.turn + 1
        try:
            with suppress(BlockingIOError):
                self._rest = self._rest[self.sock.send(self._rest) :]
            with suppress(BlockingIOError):
                return self.sock.recv(65_536) != b""
        except OSError:
            return False
        return True


def flood_frames(
    port: int, seconds: float, greeting: bytes, again: Callable[[int], bytes], count: int = FLOODING
) -> None:
    """Floods some connections by turns; all are opened anew when the server has ended the last of them.

    Args:
        port: Of the server.
        seconds: How long.
        greeting: What each connection begins with.
        again: The frames of a turn of a connection.
        count: Of connections.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, count, greeting) as opened:
            left = [_Flooded(sock) for sock in opened]
            while left and time.monotonic() < until:
                left = [one for one in left if one.step(again)]


@on("grpc", "128 MiB of all connections", agents=True)
def half_messages(port: int, seconds: float) -> None:
    """Messages of which the last byte never comes, over many connections."""
    body = b"\0" + (HALF_BYTES + 1).to_bytes(4, "big") + bytes(HALF_BYTES)
    parts = [frame(DATA, 0, 1, body[at : at + 16_000]) for at in range(0, len(body), 16_000)]
    with connections(port, MANY_CONNECTIONS, hello() + call(REGISTER, 1, None)) as opened:
        until, left = time.monotonic() + seconds, [_Flooded(sock) for sock in opened]
        while left and time.monotonic() < until:
            left = [one for one in left if one.turn <= len(parts) and one.step(lambda turn: b"".join(parts[turn:][:1]))]
        time.sleep(max(0.0, until - time.monotonic()))


@on("grpc", "20 s a message", agents=True)
def slow_bodies(port: int, seconds: float) -> None:
    """Requests of which a byte comes now and then, over many connections."""
    begun = call(REGISTER, 1, None) + frame(DATA, 0, 1, b"\0\0\x0f\xff\xff")
    with connections(port, MANY_CONNECTIONS, hello() + begun) as opened:
        until, left = time.monotonic() + seconds, [_Flooded(sock) for sock in opened]
        while left and time.monotonic() < until:
            left = [one for one in left if one.step(lambda _: frame(DATA, 0, 1, b"."))]
            time.sleep(seconds / 20)


@on("grpc", "400 cancels")
def resets_after_accept(port: int, seconds: float) -> None:
    """Watches that are taken back once they are open."""

    def some(turn: int) -> bytes:
        begun = b"".join(call(WATCH, 20 * turn + 1 + 2 * number, ROUTE) for number in range(10))
        before = range(20 * turn - 99, 20 * turn - 79, 2) if turn >= 5 else ()
        return begun + b"".join(frame(RST_STREAM, 0, stream, CANCEL) for stream in before)

    flood_frames(port, seconds, hello(), some)


@on("grpc", "4 new connections a turn")
def few_resets(port: int, seconds: float) -> None:
    """Fewer calls that are taken back than any bound of a connection, and then the next connection."""
    streams = range(1, 2 * FEW_RESETS, 2)
    taken_back = b"".join(call(WATCH, stream, ROUTE) for stream in streams)
    taken_back += b"".join(frame(RST_STREAM, 0, stream, CANCEL) for stream in streams)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, FLOODING, hello() + taken_back):
            pass


@on("grpc", "32 KiB of fields")
def references(port: int, seconds: float) -> None:
    """Blocks of fields of which each byte stands for four kilobytes (CVE-2025-53020 and its kin)."""
    large = frame(HEADERS, END_HEADERS, 1, headers(LOOKUP) + field("x-large", "v" * 3_900, indexed=True))

    def some(turn: int) -> bytes:
        return frame(HEADERS, END_HEADERS, 2 * turn + 3, headers(LOOKUP) + NEWEST_ENTRY * 16_000)

    flood_frames(port, seconds, hello() + large, some)


@on("grpc", "fields beyond 64 as control frames")
def small_references(port: int, seconds: float) -> None:
    """Blocks that are just small enough, of as many fields as there may be."""
    small = frame(HEADERS, END_HEADERS, 1, headers(LOOKUP) + field("x", "", indexed=True))

    def some(turn: int) -> bytes:
        block = headers(LOOKUP) + NEWEST_ENTRY * 450
        return b"".join(frame(HEADERS, END_HEADERS | 1, 20 * turn + 3 + 2 * number, block) for number in range(10))

    flood_frames(port, seconds, hello() + small, some)


@on("grpc", "256 resets of ours")
def made_you_reset(port: int, seconds: float) -> None:
    """Calls with a mistake after them, so that the server itself resets them (CVE-2025-8671)."""

    def some(turn: int) -> bytes:
        streams = range(20 * turn + 1, 20 * turn + 21, 2)
        return b"".join(call(WATCH, stream, ROUTE) + frame(WINDOW_UPDATE, 0, stream, bytes(4)) for stream in streams)

    flood_frames(port, seconds, hello(), some)


@on("grpc", "128 MiB of answers that wait")
def zero_windows(port: int, seconds: float) -> None:
    """Answers that are never taken, of many calls on many connections."""
    paths = (LOOKUP, SNAPSHOT, WATCH, LOOKUP)
    begun = b"".join(
        call(paths[number % len(paths)], 2 * number + 1, ROUTE * (number % 4 != 1)) for number in range(100)
    )
    hold(port, seconds, MANY_CONNECTIONS // 5, hello((INITIAL_WINDOW_SIZE, 0)) + begun)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood")
def tiny_windows(port: int, seconds: float) -> None:
    """Answers that are taken a byte at a time."""
    streams = range(1, 200, 2)
    begun = b"".join(call(LOOKUP, stream, ROUTE) for stream in streams)
    more = b"".join(frame(WINDOW_UPDATE, 0, stream, ONE_MORE) for stream in streams)
    flood_frames(port, seconds, hello((INITIAL_WINDOW_SIZE, 1)) + begun, lambda _: more)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood")
def window_flips(port: int, seconds: float) -> None:
    """The windows of open calls, made smaller and larger again."""
    begun = b"".join(call(WATCH, stream, ROUTE) for stream in range(1, 200, 2))
    flips = b"".join(
        frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + size.to_bytes(4, "big")) for size in (0, 65_535)
    )
    flood_frames(port, seconds, hello() + begun, lambda _: flips * 20)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood")
def updates(port: int, seconds: float) -> None:
    """The window of a connection, a byte more at a time."""
    flood_frames(port, seconds, hello(), lambda _: frame(WINDOW_UPDATE, 0, 0, ONE_MORE) * 100)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood")
def tiny_data(port: int, seconds: float) -> None:
    """A request in pieces of a byte, and of none."""
    begun = call(REGISTER, 1, None) + frame(DATA, 0, 1, b"\0\0\x3f\xff\xff")
    flood_frames(port, seconds, hello() + begun, lambda _: (frame(DATA, 0, 1, b".") + frame(DATA, 0, 1)) * 50)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood")
def unknown_frames(port: int, seconds: float) -> None:
    """Frames that nobody defines, and priorities that nobody heeds."""
    priority = frame(PRIORITY, 0, 1, bytes(4) + b"\x10")
    flood_frames(port, seconds, hello(), lambda _: (frame(UNKNOWN, 0, 0, b"?") + priority) * 50)


@on("grpc", "128 MiB of answers that wait", agents=True)
def requests_unread(port: int, seconds: float) -> None:
    """Calls as fast as they can be sent, whose answers are not read."""
    calls = [b"".join(call(LOOKUP, 200 * turn + 1 + 2 * number, ROUTE) for number in range(100)) for turn in range(50)]
    hold(port, seconds, FLOODING, hello() + b"".join(calls))
