"""Attacks by calls that each is allowed: one caller takes what all callers share."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import grpc

from tests.faults.attack.registry import on
from tests.support.hostile.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    HOST,
    INITIAL_WINDOW_SIZE,
    LOOKUP,
    ROUTE,
    SNAPSHOT,
    WATCH,
    call,
    connections,
    flood,
    frame,
    headers,
    hello,
    hold,
)

PIN = "/namesrv_api.v1.RouteService/PinRouteSnapshot"
AN_HOUR = b"\x08\x90\x1c"
"""A request for a pin of 3,600 s."""
WIDE_WATCHES, NAMES = 20, 10_000
BURST = 3_000
BURST_SECONDS = 20.0
BAD_FIELDS = (("grpc-timeout", "abc"), ("grpc-encoding", "nonsense"), ("te", "no"), ("x-bin", "!!"))


@on("grpc", "a share for each caller")
def pins(port: int, seconds: float) -> None:
    """Pins of an hour, as many as there may be."""
    flood(port, seconds, 4, hello(), lambda turn: call(PIN, 2 * turn + 1, AN_HOUR))


@on("grpc", "128 MiB of answers that wait")
def unread_snapshots(port: int, seconds: float) -> None:
    """More snapshot streams than there may be, whose readers take nothing."""
    begun = b"".join(call(SNAPSHOT, 2 * number + 1) for number in range(100))
    hold(port, seconds, 3, hello((INITIAL_WINDOW_SIZE, 0)) + begun)


@on("grpc", "10,000 names a watch, a share for each caller")
def wide_watches(port: int, seconds: float) -> None:
    """Watches of 10,000 names each, which all end at once, again and again."""
    names = b"".join(b"\x0a\x0a" + f"w{number:09}".encode() for number in range(NAMES))
    message = b"\0" + len(names).to_bytes(4, "big") + names
    parts = [message[at : at + FRAME_BYTES] for at in range(0, len(message), FRAME_BYTES)]
    watch = frame(HEADERS, END_HEADERS, 1, headers(WATCH))
    watch += b"".join(frame(DATA, END_STREAM * (part is parts[-1]), 1, part) for part in parts)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, WIDE_WATCHES, hello()) as opened:
            for sock in opened:
                sock.settimeout(1)
                with suppress(OSError):
                    sock.sendall(watch)
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))


@on("grpc", "no log line a call", agents=True)
def bad_metadata(port: int, seconds: float) -> None:
    """Fields that are wrong, in each call."""
    flood(port, seconds, 8, hello(), lambda turn: call(LOOKUP, 2 * turn + 1, ROUTE, BAD_FIELDS[turn % len(BAD_FIELDS)]))


@on("grpc", "200 calls a connection; more are taken again by the client")
def honest_bursts(port: int, seconds: float) -> None:
    """Thousands of calls at once on a new connection, by an honest client: none of them may fail."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with grpc.insecure_channel(f"{HOST}:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            ask = channel.unary_unary(LOOKUP, bytes, bytes)
            calls = [ask.future(ROUTE, timeout=BURST_SECONDS) for _ in range(BURST)]
            failed = [error for call in calls if (error := call.exception()) is not None]
        if failed:
            sys.stderr.write(f"{len(failed)} of {BURST} calls failed, the first with {failed[0]}\n")
            sys.exit(1)
