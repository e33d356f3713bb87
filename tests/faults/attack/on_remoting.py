"""Hostile clients of RocketMQ's protocol: a function for each, bounded in time."""

from __future__ import annotations

import os
import struct
import time
import zlib
from contextlib import ExitStack, suppress

from tests.faults.attack.on_grpc import FLOOD_CONNECTIONS, MOST_CONNECTIONS
from tests.faults.attack.registry import on
from tests.support.hostile.frames import connections, flood, hold, say_no_more, send
from tests.support.programs.rocketmq import broker_fields, frame, registration_body

LOOKUP = frame(105, {"topic": "TopicTest"})
LIST = frame(206)
CLUSTERS = frame(106)
LARGEST = 16 * 1024 * 1024
BOMB_BYTES = 256 * 1024 * 1024


@on("remoting", "what is no frame ends the connection")
def random_bytes(port: int, seconds: float) -> None:
    """Bytes without any sense."""
    flood(port, seconds, 20, b"", lambda _: os.urandom(2_000))


@on("remoting", "what is no frame ends the connection")
def other_protocols(port: int, seconds: float) -> None:
    """HTTP/1.1 and gRPC."""
    hellos = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    flood(port, seconds, 20, b"", lambda turn: hellos[turn % 2])


@on("remoting", "what is no frame ends the connection")
def broken_frames(port: int, seconds: float) -> None:
    """Lookups with one byte that is another."""

    def some(turn: int) -> bytes:
        at = turn % len(LOOKUP)
        return LOOKUP + LOOKUP[:at] + bytes([turn % 256]) + LOOKUP[at + 1 :]

    flood(port, seconds, 20, b"", some)


@on("remoting", "64 KiB ahead of the bytes, 64 MiB an address")
def declared_sizes(port: int, seconds: float) -> None:
    """Frames that say that they have 16 MiB, and of which 20 bytes come."""
    begun = struct.pack(">II", LARGEST - 4, 2) + b"{}" + bytes(20)
    hold(port, seconds, MOST_CONNECTIONS, begun)


@on("remoting", "40 MiB unpacked")
def zlib_bombs(port: int, seconds: float) -> None:
    """Registrations that unpack to 256 MiB."""
    bomb = frame(103, broker_fields("bomb", "127.0.0.1:9"), zlib.compress(bytes(BOMB_BYTES)))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, 2, b"") as opened:
            for sock in opened:
                sock.settimeout(2)
                with suppress(OSError):
                    sock.sendall(bomb)
                    sock.recv(65_536)


@on("remoting", "1 MiB unsent a connection, 256 MiB of all")
def never_readers(port: int, seconds: float) -> None:
    """Lists of all topics and brokers that are asked for and never taken."""
    hold(port, seconds, MOST_CONNECTIONS, (LIST + CLUSTERS) * 100)


@on("remoting", "10 s without a byte, 30 s a frame")
def slow_writers(port: int, seconds: float) -> None:
    """Lookups of which a byte comes now and then."""
    with connections(port, 50, b"") as opened:
        until = time.monotonic() + seconds
        for byte in LOOKUP:
            if time.monotonic() > until:
                return
            for sock in opened:
                send(sock, bytes((byte,)))
            time.sleep(seconds / len(LOOKUP))


@on("remoting", "32 requests a connection, in turns")
def lookup_flood(port: int, seconds: float) -> None:
    """Lookups as fast as they can be sent."""
    flood(port, seconds, 4, b"", lambda _: LOOKUP * 50)


@on("remoting", "32 requests a connection, in turns")
def unknown_requests(port: int, seconds: float) -> None:
    """Requests that there are not."""
    flood(port, seconds, 4, b"", lambda turn: frame(30_000 + turn % 1_000) * 50)


@on("remoting", "32 requests a connection, in turns")
def one_way_flood(port: int, seconds: float) -> None:
    """Signs of life of brokers that there are not, which nobody answers."""
    sign = frame(904, broker_fields("nobody", "127.0.0.1:9"), flag=2)
    flood(port, seconds, 4, b"", lambda _: sign * 50)


@on("remoting", "4,000,000 topics under way")
def registration_flood(port: int, seconds: float) -> None:
    """Brokers with twenty topics that come, and leave with their connections."""

    def some(turn: int) -> bytes:
        body = registration_body([f"flood-{number}" for number in range(20)], counter=turn)
        return frame(103, broker_fields(f"flood-{turn % 50}", f"127.0.0.1:{turn % 50 + 1}"), body)

    flood(port, seconds, 10, b"", some)


@on("remoting", "120 s, 20,000 connections")
def silent_connections(port: int, seconds: float) -> None:
    """Connections that say nothing, and half of a beginning."""
    with connections(port, MOST_CONNECTIONS // 2, b""):
        hold(port, seconds, MOST_CONNECTIONS // 2, LOOKUP[:10])


@on("remoting", "silent connections end")
def half_open(port: int, seconds: float) -> None:
    """Connections that say no more in the middle of a frame, after lists that they never take, and stay."""
    say_no_more(port, seconds, MOST_CONNECTIONS, LIST * 20 + LOOKUP[:-1])


@on("remoting", "20,000 connections")
def connection_flood(port: int, seconds: float) -> None:
    """Connections as fast as they can be opened, up to thousands that stay."""
    until = time.monotonic() + seconds
    with ExitStack() as opened:
        for _ in range(FLOOD_CONNECTIONS // 100):
            if time.monotonic() < until:
                opened.enter_context(connections(port, 100, b""))
        time.sleep(max(0.0, until - time.monotonic()))
