"""Hostile clients of a gRPC server, by hand, because no library sends this: a function for each, bounded in time."""

from __future__ import annotations

import gzip
import os
import time
from contextlib import ExitStack, suppress

from tests.faults.attack.on_accounts import client_hello
from tests.faults.attack.registry import on
from tests.support.hostile.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
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
    connections,
    flood,
    frame,
    headers,
    hello,
    hold,
    say_no_more,
    send,
)

MOST_CONNECTIONS = 300
FLOOD_CONNECTIONS = 10_000
BOMB_BYTES = 256 * 1024 * 1024
LARGE_METADATA_CALLS_A_SECOND = 100
LARGE_METADATA_BYTES = 1024 * 1024
STREAMS = 5_000


@on("grpc", "what is no HTTP/2 ends the connection", agents=True)
@on("tls", "what is no HTTP/2 ends the connection")
def random_bytes(port: int, seconds: float) -> None:
    """Bytes without any sense."""
    flood(port, seconds, 20, b"", lambda _: os.urandom(2_000))


@on("grpc", "what is no HTTP/2 ends the connection", agents=True)
def other_protocol(port: int, seconds: float) -> None:
    """HTTP/1.1."""
    flood(port, seconds, 20, b"", lambda _: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


@on("grpc", "what is no HTTP/2 ends the connection", agents=True)
def random_frames(port: int, seconds: float) -> None:
    """Frames of any kind, with any flags, on any stream."""

    def some(turn: int) -> bytes:
        noise = os.urandom(64)
        return frame(noise[0] % 11, noise[1], noise[2] % 8, noise[3 : 3 + turn % 60])

    flood(port, seconds, 20, hello(), some)


@on("grpc", "64 calls a turn")
def wrong_methods(port: int, seconds: float) -> None:
    """Calls that there are not, and requests that are no calls."""
    paths = ("/", "/a", "//", "/namesrv_api.v1.RouteService/", "/namesrv_api.v1.RouteService/Drop", "/" + "x" * 4_000)
    flood(port, seconds, 10, hello(), lambda turn: call(paths[turn % len(paths)], 2 * turn + 1))


@on("grpc", "32 KiB of fields")
def large_metadata(port: int, seconds: float) -> None:
    """A megabyte of metadata in a call, in so many calls at most that memory tells of them and not of the time."""
    block = headers(LOOKUP, *((f"x-{number}", "v" * 8_000) for number in range(LARGE_METADATA_BYTES // 8_000)))
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    frames = frame(HEADERS, 0, 1, parts[0])
    frames += b"".join(frame(CONTINUATION, 0, 1, part) for part in parts[1:-1])
    frames += frame(CONTINUATION, END_HEADERS, 1, parts[-1])
    until = time.monotonic() + seconds
    for _ in range(round(LARGE_METADATA_CALLS_A_SECOND / 5 * seconds)):
        if time.monotonic() > until:
            return
        with connections(port, 5, hello()) as open_ones:
            for sock in open_ones:
                sock.settimeout(2)
                with suppress(OSError):
                    sock.sendall(frames)
                    sock.recv(65_536)


@on("grpc", "16 MiB, from the prefix", agents=True)
def declared_sizes(port: int, seconds: float) -> None:
    """Requests that say that they have 4 GiB, and of which 20 bytes come."""
    begun = b"".join(
        call(REGISTER, stream, None) + frame(DATA, 0, stream, b"\0\xff\xff\xff\xff" + bytes(20))
        for stream in range(1, 200, 2)
    )
    hold(port, seconds, 5, hello() + begun)


@on("grpc", "unpacked in pieces to 16 MiB")
def gzip_bomb(port: int, seconds: float) -> None:
    """A request that unpacks to 256 MiB."""
    packed = gzip.compress(bytes(BOMB_BYTES))
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    parts = [message[at : at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)]
    begun = frame(HEADERS, END_HEADERS, 1, headers(REGISTER, ("grpc-encoding", "gzip")))
    frames = begun + b"".join(frame(DATA, END_STREAM * (part is parts[-1]), 1, part) for part in parts)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, 1, hello()) as open_ones:
            for sock in open_ones:
                sock.settimeout(2)
                with suppress(OSError):
                    sock.sendall(frames)
                    while sock.recv(65_536):
                        pass


@on("grpc", "200 calls a connection", agents=True)
def many_streams(port: int, seconds: float) -> None:
    """Thousands of calls on one connection, none of which is finished."""
    begun = b"".join(call(LOOKUP, 2 * number + 1, None) for number in range(STREAMS))
    until = time.monotonic() + seconds
    with connections(port, 1, hello()) as open_ones:
        for sock in open_ones:
            sock.settimeout(max(1.0, seconds))
            with suppress(OSError):
                sock.sendall(begun)
            time.sleep(max(0.0, until - time.monotonic()))


@on("grpc", "128 MiB of answers that wait", agents=True)
def slow_readers(port: int, seconds: float) -> None:
    """Streams whose answers are never taken."""
    begun = b"".join(call(SNAPSHOT, stream) for stream in (1, 5)) + call(WATCH, 3, ROUTE)
    hold(port, seconds, 20, hello((INITIAL_WINDOW_SIZE, 0)) + begun)


@on("grpc", "20 s a message", agents=True)
def slow_writers(port: int, seconds: float) -> None:
    """Requests of which a byte comes now and then."""
    request = call(LOOKUP, 1, b"\n\x09TopicTest")
    with connections(port, 50, hello()) as open_ones:
        until = time.monotonic() + seconds
        for byte in request:
            if time.monotonic() > until:
                return
            for sock in open_ones:
                send(sock, bytes((byte,)))
            time.sleep(seconds / len(request))


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood", agents=True)
def pings(port: int, seconds: float) -> None:
    """Pings as fast as they can be sent."""
    flood(port, seconds, 4, hello(), lambda _: frame(PING, 0, 0, bytes(8)) * 50)


@on("grpc", "2,000 frames a second, 64 a turn, 5 s of flood", agents=True)
def settings(port: int, seconds: float) -> None:
    """Settings as fast as they can be sent."""
    flood(port, seconds, 4, hello(), lambda _: frame(SETTINGS, 0, 0) * 50)


@on("grpc", "20 before they are looked at")
def resets(port: int, seconds: float) -> None:
    """Calls that are taken back at once (CVE-2023-44487)."""

    def some(turn: int) -> bytes:
        streams = range(20 * turn + 1, 20 * turn + 21, 2)
        return b"".join(call(LOOKUP, stream) + frame(RST_STREAM, 0, stream, bytes(4)) for stream in streams)

    flood(port, seconds, 4, hello(), some)


@on("grpc", "32 KiB of fields", agents=True)
def endless_headers(port: int, seconds: float) -> None:
    """A header block without an end."""
    flood(
        port,
        seconds,
        2,
        hello() + frame(HEADERS, 0, 1, headers(LOOKUP)),
        lambda _: frame(CONTINUATION, 0, 1, bytes(1)),
    )


@on("grpc", "10 s", agents=True)
def idle_connections(port: int, seconds: float) -> None:
    """Connections that say nothing, and half of a beginning."""
    with connections(port, MOST_CONNECTIONS // 2, b""):
        hold(port, seconds, MOST_CONNECTIONS // 2, PREFACE[:10])


@on("grpc", "silent connections end", agents=True)
def half_open(port: int, seconds: float) -> None:
    """Connections that say no more in the middle of a call, and stay."""
    say_no_more(port, seconds, MOST_CONNECTIONS, hello() + call(LOOKUP, 1, None))


@on("grpc", "100,000 connections, 2,000 a second", agents=True)
def connection_flood(port: int, seconds: float) -> None:
    """Connections as fast as they can be opened, up to thousands that stay."""
    until = time.monotonic() + seconds
    with ExitStack() as opened:
        for _ in range(FLOOD_CONNECTIONS // 100):
            if time.monotonic() < until:
                opened.enter_context(connections(port, 100, hello()))
        time.sleep(max(0.0, until - time.monotonic()))


@on("tls", "10 s")
def half_handshakes(port: int, seconds: float) -> None:
    """The first half of a TLS handshake."""
    begun = client_hello()
    hold(port, seconds, MOST_CONNECTIONS, begun[: len(begun) // 2])
