"""Hostile clients of a gRPC server, by hand, because no library sends this."""

from __future__ import annotations

import gzip
import os
import sys
import time
import zlib
from functools import cache

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2, client_service_pb2, topic_config_service_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2

from tests.faults.attack.kinds import (
    MOST_CONNECTIONS,
    ByHand,
    Request,
    ask,
    crowd,
    flood,
    half_silent,
    hold,
    repeat,
    say_no_more,
    trickle,
)
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
    RST_STREAM,
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
CANCEL = (8).to_bytes(4, "big")
MANY = 1_000
"""Connections."""
CALLS, HALF = range(1, 400, 2), range(1, 200, 2)
"""That a connection may have open, and half of them."""
HALF_BYTES = 200_000
BURST, BURST_SECONDS = 3_000, 20.0

NO_HTTP2 = "what is no HTTP/2 ends the connection"
FLOODED = "2,000 frames a second, 64 a turn, 5 s of flood"
UNREAD = "128 MiB of answers that wait"
OF_AN_ADDRESS = "64 MiB of requests an address"
HEALTH = "12,500 calls of health an address"

PATHS = ("/", "/a", "//", "/namesrv_api.v1.RouteService/", "/namesrv_api.v1.RouteService/Drop", "/" + "x" * 4_000)
"""Calls that there are not, and requests that are no calls."""
FILES = {
    "namesrv": (admin_service_pb2, registration_service_pb2, route_service_pb2, reflection_pb2),
    "agent": (broker_agent_service_pb2, topic_config_service_pb2),
    "clients": (client_service_pb2,),
}[os.environ.get("ATTACKED", "namesrv")]
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (*FILES, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
MALFORMED = (
    *(b"\xff" * 20, b"\n\xff\xff\xff\xff\x0f", b"\n\x7f", b"\x0b" * 5_000),
    *(b"\n\x02\xc3\x28", b"\n\x06" * 3_000, b"\x07\x07\x07"),
)
"""Endless varints, lengths beyond the message, nested groups, text that is no UTF-8, unknown wire types."""
BAD_FIELDS = (("grpc-timeout", "abc"), ("grpc-encoding", "nonsense"), ("te", "no"), ("x-bin", "!!"))


def ten(turn: int) -> range:
    """The streams of a turn."""
    return range(20 * turn + 1, 20 * turn + 21, 2)


def calls(streams: range, path: str, message: bytes | None = b"", *more: tuple[str, str]) -> bytes:
    """The same call on each of some streams."""
    return b"".join(call(path, stream, message, *more) for stream in streams)


def ended(streams: range, kind: int = RST_STREAM, payload: bytes = CANCEL) -> bytes:
    """A frame for each of some streams."""
    return b"".join(frame(kind, 0, stream, payload) for stream in streams)


def in_frames(message: bytes) -> bytes:
    """A request on the first stream in the largest frames, whatever the windows are."""
    parts = [message[at : at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)]
    return b"".join(frame(DATA, END_STREAM * (part is parts[-1]), 1, part) for part in parts)


def random_frame(turn: int) -> bytes:
    """A frame of any kind, with any flags, on any stream."""
    noise = os.urandom(64)
    return frame(noise[0] % 11, noise[1], noise[2] % 8, noise[3 : 3 + turn % 60])


def large_metadata() -> bytes:
    """A call with 1 MB of metadata."""
    block = headers(LOOKUP, *((f"x-{number}", "v" * 8_000) for number in range(131)))
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    begun = hello() + frame(HEADERS, 0, 1, parts[0])
    begun += b"".join(frame(CONTINUATION, 0, 1, part) for part in parts[1:-1])
    return begun + frame(CONTINUATION, END_HEADERS, 1, parts[-1])


def gzip_bomb() -> bytes:
    """A request that unpacks to 256 MiB."""
    begun = frame(HEADERS, END_HEADERS, 1, headers(REGISTER, ("grpc-encoding", "gzip")))
    return hello() + begun + in_frames(prefixed(gzip.compress(bytes(256 << 20)), b"\1"))


def malformed(turn: int) -> bytes:
    """Messages that cannot be read, to every method of every service."""
    bodies = [*MALFORMED, os.urandom(200)]
    return b"".join(call(METHODS[at // 2 % len(METHODS)], at, bodies[at // 2 % len(bodies)]) for at in ten(turn))


# Compressed requests.

MESSAGE_BYTES = 16 * 1024 * 1024 - 1024
"""Just below the largest message that a name server takes."""
EMPTY_BLOCKS = sum(2 << (10 * number) for number in range(4)).to_bytes(5, "little")
"""Four blocks of deflate with fixed codes and no content: ten bits each."""
LAST_BLOCK = b"\x03\x00"
GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
SMALL = gzip.compress(b"\n\x09TopicTest" * 100, mtime=0)
WRONG = (
    *(("gzip", zlib.compress(bytes(1000)), b"\1"), ("deflate", SMALL, b"\1"), ("identity", SMALL, b"\1")),
    *(("gzip", os.urandom(1000), b"\1"), ("gzip", SMALL, b"\2"), ("gzip", b"", b"\1"), ("snappy", SMALL, b"\1")),
    *(("gzip, gzip", gzip.compress(SMALL), b"\1"), ("x" * 4000, SMALL, b"\1"), ("gzip", SMALL, b"\0")),
)
"""Messages that are not what their call says: another compression, none, one that there is not."""


def packed(encoding: str, body: bytes) -> Request:
    """A call whose message is compressed."""
    return headers(REGISTER, ("grpc-encoding", encoding)), body


@cache
def bomb() -> bytes:
    """16 MiB of zeros."""
    return gzip.compress(bytes(MESSAGE_BYTES), mtime=0)


@cache
def empty_blocks(encoding: str) -> Request:
    """A message of millions of blocks and no content."""
    head, tail = (GZIP_HEAD, bytes(8)) if encoding == "gzip" else (b"\x78\x9c", zlib.adler32(b"").to_bytes(4, "big"))
    count = (MESSAGE_BYTES - len(head) - len(LAST_BLOCK) - len(tail)) // len(EMPTY_BLOCKS)
    return packed(encoding, prefixed(head + EMPTY_BLOCKS * count + LAST_BLOCK + tail, b"\1"))


@cache
def empty_members() -> Request:
    """A message that is 200,000 members of gzip without content."""
    member = gzip.compress(b"", mtime=0)
    return packed("gzip", prefixed(member * (MESSAGE_BYTES // len(member)), b"\1"))


def truncated(turn: int) -> Request:
    """A compressed message that ends early, anywhere."""
    whole = bomb() if turn % 10 == 0 else SMALL
    return packed("gzip", prefixed(whole[: int.from_bytes(os.urandom(2), "big") % len(whole)], b"\1"))


def wrong_encoding(turn: int) -> Request:
    """One of those that are not what their call says."""
    encoding, content, flag = WRONG[turn % len(WRONG)]
    return packed(encoding, prefixed(content, flag))


# What needs more than bytes.


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
    "random-bytes": ByHand(flood(lambda _: os.urandom(2_000), count=20), NO_HTTP2, agents=True),
    "other-protocol": ByHand(flood(lambda _: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", count=20), NO_HTTP2, agents=True),
    "random-frames": ByHand(flood(random_frame, hello(), 20), NO_HTTP2, agents=True),
    "wrong-methods": ByHand(flood(lambda turn: call(PATHS[turn % 6], 2 * turn + 1), hello(), 10), "64 calls a turn"),
    # At most so many calls that their memory shows, and not the time.
    "large-metadata": ByHand(repeat(large_metadata, 5, 0.05), "32 KiB of fields"),
    "declared-sizes": ByHand(
        hold(hello() + calls(HALF, REGISTER, None) + ended(HALF, DATA, b"\0" + b"\xff" * 4 + bytes(20)), 5),
        "16 MiB, from the prefix",
        agents=True,
    ),
    "gzip-bomb": ByHand(repeat(gzip_bomb, 1), "unpacked in pieces to 16 MiB"),
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
    "idle-connections": ByHand(half_silent(PREFACE[:10]), "10 s", agents=True),
    "half-open": ByHand(say_no_more(hello() + call(LOOKUP, 1, None)), "silent connections end", agents=True),
    "connection-flood": ByHand(crowd(hello()), "100,000 connections, 2,000 a second", agents=True),
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
    "slow-bodies": ByHand(
        trickle(
            hello() + call(REGISTER, 1, None) + frame(DATA, 0, 1, b"\0\0\x0f\xff\xff"),
            [frame(DATA, 0, 1, b".")] * 20,
            MANY,
            20,
        ),
        "20 s a message",
        agents=True,
    ),
    "requests-unread": ByHand(hold(hello() + calls(range(1, 10_000, 2), LOOKUP, ROUTE), 8), UNREAD, agents=True),
    "bad-metadata": ByHand(
        flood(lambda turn: call(LOOKUP, 2 * turn + 1, ROUTE, BAD_FIELDS[turn % 4]), hello(), 8),
        "no log line a call",
        agents=True,
    ),
    "honest-bursts": ByHand(honest_bursts, "200 calls a connection; more are taken again by the client"),
    "empty-blocks": ByHand(
        ask(lambda turn: empty_blocks("gzip" if turn % 2 else "deflate"), 4), "steps of 4 KiB, one message at a time"
    ),
    "empty-members": ByHand(ask(lambda _: empty_members(), 4), "16 members a message", agents=True),
    "many-bombs": ByHand(ask(lambda _: packed("gzip", prefixed(bomb(), b"\1")), 40), f"{OF_AN_ADDRESS}, decompressed"),
    "truncated-gzip": ByHand(ask(truncated, 4), "the call ends", agents=True),
    "wrong-encodings": ByHand(ask(wrong_encoding, 4), "the call ends", agents=True),
    "health-watches": ByHand(
        hold(hello() + calls(CALLS, HEALTH_WATCH), MOST_CONNECTIONS, 2.0), HEALTH, agents=True, own_address=True
    ),
    "health-checks": ByHand(
        flood(lambda turn: calls(ten(turn), HEALTH_CHECK), hello(), 50), HEALTH, agents=True, own_address=True
    ),
    "malformed-messages": ByHand(flood(malformed, hello(), 8), "200 calls a connection", agents=True, own_address=True),
}
"""The attacks on any listener of gRPC, by name."""
