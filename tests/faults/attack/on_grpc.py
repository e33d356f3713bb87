"""Hostile clients of a gRPC server, by hand, because no library sends this."""

from __future__ import annotations

import gzip
import os
import sys
import time

import grpc

from tests.faults.attack.kinds import FLOOD_CONNECTIONS, MOST_CONNECTIONS, ByHand, flood, hold, repeat, trickle
from tests.support.hostile.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    HOST,
    INITIAL_WINDOW_SIZE,
    LOOKUP,
    PING,
    PREFACE,
    REGISTER,
    ROUTE,
    SETTINGS,
    SNAPSHOT,
    WATCH,
    call,
    frame,
    headers,
    hello,
    prefixed,
)

HEALTH_CHECK, HEALTH_WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
MANY = 1_000
"""Connections."""
CALLS, HALF = range(1, 400, 2), range(1, 200, 2)
"""That a connection may have open, and half of them."""
HALF_BYTES = 200_000
BURST, BURST_SECONDS = 3_000, 20.0
FLOODED = "2,000 frames a second, 64 a turn, 5 s of flood"
UNREAD = "128 MiB of answers that wait"
HEALTH = "12,500 calls of health an address"


def calls(streams: range, path: str, message: bytes | None = b"") -> bytes:
    """The same call on each of some streams."""
    return b"".join(call(path, stream, message) for stream in streams)


def declared(streams: range) -> bytes:
    """Registrations on each of some streams, which declare 4 GiB and have 20 bytes."""
    message = b"\0" + b"\xff" * 4 + bytes(20)
    return calls(streams, REGISTER, None) + b"".join(frame(DATA, 0, stream, message) for stream in streams)


def in_pieces(data: bytes) -> list[bytes]:
    """What fits into a frame each."""
    return [data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)]


def large_metadata() -> bytes:
    """A call with 1 MB of metadata."""
    first, *others, last = in_pieces(headers(LOOKUP, *((f"x-{number}", "v" * 8_000) for number in range(131))))
    begun = hello() + frame(HEADERS, 0, 1, first) + b"".join(frame(CONTINUATION, 0, 1, part) for part in others)
    return begun + frame(CONTINUATION, END_HEADERS, 1, last)


def bomb(size: int) -> bytes:
    """A request that unpacks to so many bytes, whatever the windows are."""
    begun = frame(HEADERS, END_HEADERS, 1, headers(REGISTER, ("grpc-encoding", "gzip")))
    parts = in_pieces(prefixed(gzip.compress(bytes(size)), b"\1"))
    return hello() + begun + b"".join(frame(DATA, END_STREAM * (part is parts[-1]), 1, part) for part in parts)


def honest_bursts(port: int, seconds: float) -> None:
    """Thousands of calls at once on a new connection, by an honest client: none of them may fail."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with grpc.insecure_channel(f"{HOST}:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            look_up = channel.unary_unary(LOOKUP, bytes, bytes)
            asked = [look_up.future(ROUTE, timeout=BURST_SECONDS) for _ in range(BURST)]
            failed = [error for one in asked if (error := one.exception()) is not None]
        if failed:
            sys.exit(f"{len(failed)} of {BURST} calls failed, the first with {failed[0]}")


GRPC = {
    "random-bytes": ByHand(
        flood(lambda _: os.urandom(2_000), count=20), "what is no HTTP/2 ends the connection", agents=True
    ),
    # At most so many calls that their memory shows, and not the time.
    "large-metadata": ByHand(repeat(large_metadata, 5, 0.05), "32 KiB of fields"),
    "declared-sizes": ByHand(hold(hello() + declared(HALF), 5), "16 MiB, from the prefix", agents=True),
    "gzip-bomb": ByHand(repeat(lambda: bomb(256 << 20), 1), "unpacked in pieces to 16 MiB"),
    "many-bombs": ByHand(repeat(lambda: bomb((16 << 20) - 1024), 40), "64 MiB of requests an address, decompressed"),
    "many-streams": ByHand(
        hold(hello() + calls(range(1, 10_000, 2), LOOKUP, None), 1), "200 calls a connection", agents=True
    ),
    "slow-readers": ByHand(
        hold(hello((INITIAL_WINDOW_SIZE, 0)) + calls(CALLS[:2], SNAPSHOT) + call(WATCH, 5, ROUTE), 20),
        UNREAD,
        agents=True,
    ),
    "slow-writers": ByHand(
        trickle(hello(), [bytes((byte,)) for byte in call(LOOKUP, 1, ROUTE)], 50, 150), "20 s a message", agents=True
    ),
    "pings": ByHand(flood(lambda _: frame(PING, 0, 0, bytes(8)) * 50, hello()), FLOODED, agents=True),
    "settings": ByHand(flood(lambda _: frame(SETTINGS, 0, 0) * 50, hello()), FLOODED, agents=True),
    "endless-headers": ByHand(
        flood(lambda _: frame(CONTINUATION, 0, 1, bytes(1)), hello() + frame(HEADERS, 0, 1, headers(LOOKUP)), 2),
        "32 KiB of fields",
        agents=True,
    ),
    "idle-connections": ByHand(hold(PREFACE[:10], MOST_CONNECTIONS), "10 s", agents=True),
    "half-open": ByHand(
        hold(hello() + call(LOOKUP, 1, None), MOST_CONNECTIONS, half_open=True), "silent connections end", agents=True
    ),
    "connection-flood": ByHand(hold(hello(), FLOOD_CONNECTIONS), "100,000 connections, 2,000 a second", agents=True),
    "half-messages": ByHand(
        trickle(
            hello() + call(REGISTER, 1, None) + frame(DATA, 0, 1, b"\0" + (HALF_BYTES + 1).to_bytes(4, "big")),
            [frame(DATA, 0, 1, bytes(16_000))] * (HALF_BYTES // 16_000),
            MANY,
            1_000,
        ),
        "128 MiB of all connections",
        agents=True,
    ),
    "requests-unread": ByHand(hold(hello() + calls(range(1, 10_000, 2), LOOKUP, ROUTE), 8), UNREAD, agents=True),
    "honest-bursts": ByHand(honest_bursts, "200 calls a connection; more are taken again by the client"),
    "health-watches": ByHand(
        hold(hello() + calls(CALLS, HEALTH_WATCH), MOST_CONNECTIONS, 2.0), HEALTH, agents=True, own_address=True
    ),
    "health-checks": ByHand(
        flood(lambda turn: calls(range(20 * turn + 1, 20 * turn + 21, 2), HEALTH_CHECK), hello(), 50),
        HEALTH,
        agents=True,
        own_address=True,
    ),
}
"""The attacks on any listener of gRPC, by name."""
