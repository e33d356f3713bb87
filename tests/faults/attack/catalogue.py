"""All attacks, and how to run one by hand: ``python -m tests.faults.attack.catalogue LISTENER NAME PORT SECONDS``.

It attacks loopback only. Those on gRPC are in ``on_grpc``.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import count

from tests.faults.attack.kinds import FLOOD_CONNECTIONS, MOST_CONNECTIONS, ByHand, flood, hold, repeat, trickle
from tests.faults.attack.on_grpc import GRPC
from tests.support.programs.rocketmq import broker_fields, frame, registration_body

LOOKUP, LIST, CLUSTERS = frame(105, {"topic": "TopicTest"}), frame(206), frame(106)
SIGN_OF_NOBODY = frame(904, broker_fields("nobody", "127.0.0.1:9"), flag=2)
DECLARED = struct.pack(">II", (16 << 20) - 4, 2) + b"{}" + bytes(20)
"""The first 20 bytes of a frame that declares 16 MiB."""
BROKERS = count()


def broken(turn: int) -> bytes:
    """A lookup, and one with one byte that is another."""
    at = turn % len(LOOKUP)
    return LOOKUP + LOOKUP[:at] + bytes([turn % 256]) + LOOKUP[at + 1 :]


def registered(_: int) -> bytes:
    """One of fifty brokers with twenty topics, which leave with their connections."""
    number = next(BROKERS)
    body = registration_body([f"flood-{topic}" for topic in range(20)], counter=number)
    return frame(103, broker_fields(f"flood-{number % 50}", f"127.0.0.1:{number % 50 + 1}"), body)


def bomb() -> bytes:
    """A registration that unpacks to 256 MiB."""
    return frame(103, broker_fields("bomb", "127.0.0.1:9"), zlib.compress(bytes(256 << 20)))


def in_turns(again: Callable[[int], bytes]) -> ByHand:
    """A flood of requests."""
    return ByHand(flood(again), "32 requests a connection, in turns")


REMOTING = {
    "random-bytes": ByHand(flood(lambda _: os.urandom(2_000), count=20), "what is no frame ends the connection"),
    "broken-frames": ByHand(flood(broken, count=20), "what is no frame ends the connection"),
    "declared-sizes": ByHand(hold(DECLARED, MOST_CONNECTIONS), "64 KiB ahead of the bytes, 64 MiB an address"),
    "zlib-bombs": ByHand(repeat(bomb, 2), "40 MiB unpacked"),
    # Lists with bodies of 60 kB whose answers are not taken.
    "queued-frames": ByHand(hold(frame(206, body=os.urandom(60_000)) * 32, 100), "32 requests a connection"),
    "never-readers": ByHand(
        hold((LIST + CLUSTERS) * 100, MOST_CONNECTIONS), "1 MiB unsent a connection, 256 MiB of all"
    ),
    "slow-writers": ByHand(
        trickle(b"", [bytes((byte,)) for byte in LOOKUP], 50, len(LOOKUP)), "10 s without a byte, 30 s a frame"
    ),
    "lookup-flood": in_turns(lambda _: LOOKUP * 50),
    "unknown-requests": in_turns(lambda turn: frame(30_000 + turn % 1_000) * 50),
    # Nobody answers them.
    "one-way-flood": in_turns(lambda _: SIGN_OF_NOBODY * 50),
    "registration-flood": ByHand(flood(registered, count=10), "4,000,000 topics under way"),
    # In the middle of a frame, after lists that are never taken.
    "half-open": ByHand(hold(LIST * 20 + LOOKUP[:-1], MOST_CONNECTIONS, half_open=True), "silent connections end"),
    "connection-flood": ByHand(hold(b"", FLOOD_CONNECTIONS), "20,000 connections"),
}
"""The attacks on RocketMQ's protocol, by name."""

CONNECTIONS = 60
AGAIN_SECONDS = 0.5
"""After which connections are opened anew: the server may have cut some."""
BOUND = "connections by address, a deadline for the request"
PAGE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/actions HTTP/1.1\r\nContent-Length: 9\r\n"
BYTES = 150

HTTP = {
    "silent": ByHand(hold(b"", CONNECTIONS, AGAIN_SECONDS), BOUND),
    # Slowloris: requests that never end.
    "trickling": ByHand(trickle(b"GET /", [b"a"] * BYTES, CONNECTIONS, BYTES), BOUND),
    "half-open": ByHand(hold(POST, MOST_CONNECTIONS, half_open=True), BOUND),
    "not-reading": ByHand(hold(PAGE * 20, CONNECTIONS, AGAIN_SECONDS), BOUND),
    "flooding": ByHand(flood(lambda _: PAGE, count=20), BOUND),
    "garbage": ByHand(repeat(lambda: bytes(range(256)) * 8, 1, 0.005), BOUND),
}
"""The attacks on a listener of HTTP, by name."""

ATTACKS = {"grpc": GRPC, "remoting": REMOTING, "metrics": HTTP}
"""By listener and name."""


if __name__ == "__main__":
    listener_name, attack_name, port_text, seconds_text = sys.argv[1:]
    ATTACKS[listener_name][attack_name].attack(int(port_text), float(seconds_text))
