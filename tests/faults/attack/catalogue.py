"""All attacks, and how to run one by hand: ``python -m tests.faults.attack.catalogue LISTENER NAME PORT SECONDS``.

They attack loopback only, with bytes, because no library sends this: floods, holders, and those that trickle or repeat.
"""

from __future__ import annotations

import gzip
import itertools
import os
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import grpc

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
    connections,
    frame,
    headers,
    hello,
    prefixed,
)
from tests.support.programs import rocketmq

# Kinds

Function = Callable[[int, float], None]
"""Attacks a port for some seconds."""

MOST_CONNECTIONS = 300
FLOOD_CONNECTIONS = 10_000
AT_ONCE = 100
"""Connections that are opened between two looks at the time."""


class ByHand(NamedTuple):
    """An attack by hand."""

    attack: Function
    bound: str
    """What holds it."""
    only_native: bool = False
    """Whether the listeners of agents, which are grpcio's, do not withstand it."""
    own_address: bool = False
    """Whether the attacker needs an address that is not the machine's own."""


class _Peer:
    """A connection over which whole pieces go, however little of them is taken at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.turn = 0
        self.rest = b""

    def step(self, again: Callable[[int], bytes]) -> bool:
        """Sends what can be sent at once, and reads what has come. False if the server has ended the connection."""
        if not self.rest:
            self.rest, self.turn = again(self.turn), self.turn + 1
        try:
            with suppress(BlockingIOError):
                self.rest = self.rest[self.sock.send(self.rest) :]
            with suppress(BlockingIOError):
                return self.sock.recv(65_536) != b""
        except OSError:
            return False
        return True


def flood(again: Callable[[int], bytes], greeting: bytes = b"", count: int = 4) -> Function:
    """Floods some connections, each with the bytes of its next turn; all are opened anew when the last has ended."""

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with connections(port, count, greeting) as opened:
                left = [_Peer(sock) for sock in opened]
                while left and time.monotonic() < until:
                    left = [one for one in left if one.step(again)]

    return attack


def hold(greeting: bytes, count: int, hold_seconds: float = 3_600.0, *, half_open: bool = False) -> Function:
    """Opens connections, says something, and is silent; again and again, if it is held for less than the attack.

    Half-open connections are closed for writing.
    """

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with ExitStack() as opened:
                for begun in range(0, count, AT_ONCE):
                    if time.monotonic() < until:
                        some = opened.enter_context(connections(port, min(AT_ONCE, count - begun), greeting))
                        for sock in some if half_open else ():
                            with suppress(OSError):
                                sock.shutdown(socket.SHUT_WR)
                time.sleep(max(0.0, min(until - time.monotonic(), hold_seconds)))

    return attack


def trickle(greeting: bytes, pieces: Sequence[bytes], count: int, turns: int) -> Function:
    """Sends a piece now and then, so many in the time of the attack, over many connections, which stay."""

    def attack(port: int, seconds: float) -> None:
        with connections(port, count, greeting) as opened:
            until, left = time.monotonic() + seconds, [_Peer(sock) for sock in opened]
            while left and time.monotonic() < until:
                left = [one for one in left if (one.rest or one.turn < len(pieces)) and one.step(pieces.__getitem__)]
                time.sleep(seconds / turns)
            time.sleep(max(0.0, until - time.monotonic()))

    return attack


def repeat(make: Callable[[], bytes], count: int, pause_seconds: float = 0.0) -> Function:
    """Opens connections, says all, reads what comes, and ends them; again and again."""

    def attack(port: int, seconds: float) -> None:
        said, until = make(), time.monotonic() + seconds
        while time.monotonic() < until:
            with connections(port, count, said) as opened:
                for sock in opened:
                    sock.settimeout(2)
                    with suppress(OSError):
                        sock.recv(65_536)
                time.sleep(min(pause_seconds, max(0.0, until - time.monotonic())))

    return attack


# gRPC

HEALTH_CHECK, HEALTH_WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
MANY = 1_000
"""Connections."""
CALLS, HALF, TOO_MANY = range(1, 400, 2), range(1, 200, 2), range(1, 10_000, 2)
"""That a connection may have open, half of them, and more."""
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
    "random-bytes": ByHand(flood(lambda _: os.urandom(2_000), count=20), "what is no HTTP/2 ends the connection"),
    # At most so many calls that their memory shows, and not the time.
    "large-metadata": ByHand(repeat(large_metadata, 5, 0.05), "32 KiB of fields", only_native=True),
    "declared-sizes": ByHand(hold(hello() + declared(HALF), 5), "16 MiB, from the prefix"),
    "gzip-bomb": ByHand(repeat(lambda: bomb(256 << 20), 1), "unpacked in pieces to 16 MiB", only_native=True),
    "many-bombs": ByHand(
        repeat(lambda: bomb((16 << 20) - 1024), 40), "64 MiB of requests an address, decompressed", only_native=True
    ),
    "many-streams": ByHand(hold(hello() + calls(TOO_MANY, LOOKUP, None), 1), "200 calls a connection"),
    "slow-readers": ByHand(
        hold(hello((INITIAL_WINDOW_SIZE, 0)) + calls(CALLS[:2], SNAPSHOT) + call(WATCH, 5, ROUTE), 20), UNREAD
    ),
    "slow-writers": ByHand(
        trickle(hello(), [bytes((byte,)) for byte in call(LOOKUP, 1, ROUTE)], 50, 150), "20 s a message"
    ),
    "pings": ByHand(flood(lambda _: frame(PING, 0, 0, bytes(8)) * 50, hello()), FLOODED),
    "settings": ByHand(flood(lambda _: frame(SETTINGS, 0, 0) * 50, hello()), FLOODED),
    "endless-headers": ByHand(
        flood(lambda _: frame(CONTINUATION, 0, 1, bytes(1)), hello() + frame(HEADERS, 0, 1, headers(LOOKUP)), 2),
        "32 KiB of fields",
    ),
    "idle-connections": ByHand(hold(PREFACE[:10], MOST_CONNECTIONS), "10 s"),
    "half-open": ByHand(
        hold(hello() + call(LOOKUP, 1, None), MOST_CONNECTIONS, half_open=True), "silent connections end"
    ),
    "connection-flood": ByHand(hold(hello(), FLOOD_CONNECTIONS), "100,000 connections, 2,000 a second"),
    "half-messages": ByHand(
        trickle(
            hello() + call(REGISTER, 1, None) + frame(DATA, 0, 1, b"\0" + (HALF_BYTES + 1).to_bytes(4, "big")),
            [frame(DATA, 0, 1, bytes(16_000))] * (HALF_BYTES // 16_000),
            MANY,
            1_000,
        ),
        "128 MiB of all connections",
    ),
    "requests-unread": ByHand(hold(hello() + calls(TOO_MANY, LOOKUP, ROUTE), 8), UNREAD),
    "honest-bursts": ByHand(
        honest_bursts, "200 calls a connection; more are taken again by the client", only_native=True
    ),
    "health-watches": ByHand(
        hold(hello() + calls(CALLS, HEALTH_WATCH), MOST_CONNECTIONS, 2.0), HEALTH, own_address=True
    ),
    "health-checks": ByHand(
        flood(lambda turn: calls(range(20 * turn + 1, 20 * turn + 21, 2), HEALTH_CHECK), hello(), 50),
        HEALTH,
        own_address=True,
    ),
}
"""The attacks on any listener of gRPC, by name."""

# RocketMQ's protocol

ASK, LIST, CLUSTERS = rocketmq.frame(105, {"topic": "TopicTest"}), rocketmq.frame(206), rocketmq.frame(106)
SIGN_OF_NOBODY = rocketmq.frame(904, rocketmq.broker_fields("nobody", "127.0.0.1:9"), flag=2)
DECLARED = struct.pack(">II", (16 << 20) - 4, 2) + b"{}" + bytes(20)
"""The first 20 bytes of a frame that declares 16 MiB."""
BROKERS = itertools.count()
NO_FRAME, IN_TURNS = "what is no frame ends the connection", "32 requests a connection, in turns"


def broken(turn: int) -> bytes:
    """A lookup, and one with one byte that is another."""
    at = turn % len(ASK)
    return ASK + ASK[:at] + bytes([turn % 256]) + ASK[at + 1 :]


def registered(_: int) -> bytes:
    """One of fifty brokers with twenty topics, which leave with their connections."""
    number = next(BROKERS)
    body = rocketmq.registration_body([f"flood-{topic}" for topic in range(20)], counter=number)
    return rocketmq.frame(103, rocketmq.broker_fields(f"flood-{number % 50}", f"127.0.0.1:{number % 50 + 1}"), body)


def packed_bomb() -> bytes:
    """A registration that unpacks to 256 MiB."""
    return rocketmq.frame(103, rocketmq.broker_fields("bomb", "127.0.0.1:9"), zlib.compress(bytes(256 << 20)))


REMOTING = {
    "random-bytes": ByHand(flood(lambda _: os.urandom(2_000), count=20), NO_FRAME),
    "broken-frames": ByHand(flood(broken, count=20), NO_FRAME),
    "declared-sizes": ByHand(hold(DECLARED, MOST_CONNECTIONS), "64 KiB ahead of the bytes, 64 MiB an address"),
    "zlib-bombs": ByHand(repeat(packed_bomb, 2), "40 MiB unpacked"),
    # Lists with bodies of 60 kB whose answers are not taken.
    "queued-frames": ByHand(hold(rocketmq.frame(206, body=os.urandom(60_000)) * 32, 100), "32 requests a connection"),
    "never-readers": ByHand(
        hold((LIST + CLUSTERS) * 100, MOST_CONNECTIONS), "1 MiB unsent a connection, 256 MiB of all"
    ),
    "slow-writers": ByHand(
        trickle(b"", [bytes((byte,)) for byte in ASK], 50, len(ASK)), "10 s without a byte, 30 s a frame"
    ),
    "lookup-flood": ByHand(flood(lambda _: ASK * 50), IN_TURNS),
    "unknown-requests": ByHand(flood(lambda turn: rocketmq.frame(30_000 + turn % 1_000) * 50), IN_TURNS),
    # Nobody answers them.
    "one-way-flood": ByHand(flood(lambda _: SIGN_OF_NOBODY * 50), IN_TURNS),
    "registration-flood": ByHand(flood(registered, count=10), "4,000,000 topics under way"),
    # In the middle of a frame, after lists that are never taken.
    "half-open": ByHand(hold(LIST * 20 + ASK[:-1], MOST_CONNECTIONS, half_open=True), "silent connections end"),
    "connection-flood": ByHand(hold(b"", FLOOD_CONNECTIONS), "20,000 connections"),
}
"""The attacks on RocketMQ's protocol, by name."""

ATTACKS = {"grpc": GRPC, "remoting": REMOTING}
"""By listener and name."""


if __name__ == "__main__":
    listener_name, attack_name, port_text, seconds_text = sys.argv[1:]
    ATTACKS[listener_name][attack_name].attack(int(port_text), float(seconds_text))
