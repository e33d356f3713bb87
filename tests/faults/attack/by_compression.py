"""Attacks by compressed requests: costly content, content that is cut off, and content in another encoding."""

from __future__ import annotations

import gzip
import os
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

from tests.faults.attack.registry import on
from tests.support.hostile.frames import REGISTER, Windowed, connections, headers, hello, prefixed

MESSAGE_BYTES = 16 * 1024 * 1024 - 1024
"""Just below the largest message that a name server takes."""
CONNECTIONS = 4
MANY_CONNECTIONS = 40
CALLS = 100
"""On a connection, before the next one."""
WAIT_SECONDS = 5.0

EMPTY_BLOCKS = sum(2 << (10 * number) for number in range(4)).to_bytes(5, "little")
"""Four blocks of deflate with fixed codes and no content: ten bits each."""
LAST_BLOCK = b"\x03\x00"
GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
EMPTY_MEMBER = gzip.compress(b"", mtime=0)
BOMB = gzip.compress(bytes(MESSAGE_BYTES), mtime=0)
SMALL = gzip.compress(b"\n\x09TopicTest" * 100, mtime=0)

Request = tuple[str, bytes]
"""What grpc-encoding says, and the bytes of the call."""


def _empty_blocks(head: bytes, tail: bytes) -> bytes:
    count = (MESSAGE_BYTES - len(head) - len(LAST_BLOCK) - len(tail)) // len(EMPTY_BLOCKS)
    return prefixed(head + EMPTY_BLOCKS * count + LAST_BLOCK + tail, b"\1")


def _send(port: int, seconds: float, count: int, some: Callable[[int], Request]) -> None:
    """Sends compressed requests over connections of a thread each, one after the other, as the windows allow."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_send_in_turn, args=(port, until, some), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _send_in_turn(port: int, until: float, some: Callable[[int], Request]) -> None:
    while time.monotonic() < until:
        with connections(port, 1, hello()) as opened, suppress(OSError):
            for sock in opened:
                sock.settimeout(WAIT_SECONDS)
                server = Windowed(sock)
                for turn in range(CALLS):
                    if time.monotonic() > until:
                        return
                    encoding, body = some(turn)
                    server.send(2 * turn + 1, headers(REGISTER, ("grpc-encoding", encoding)), body)
                    server.wait(2 * turn + 1)


@on("grpc", "steps of 4 KiB, one message at a time")
def empty_blocks(port: int, seconds: float) -> None:
    """Messages of 4 MiB that have millions of blocks and no content, as gzip and as deflate."""
    zipped = _empty_blocks(GZIP_HEAD, bytes(8))
    deflated = _empty_blocks(b"\x78\x9c", zlib.adler32(b"").to_bytes(4, "big"))
    _send(port, seconds, CONNECTIONS, lambda turn: ("gzip", zipped) if turn % 2 else ("deflate", deflated))


@on("grpc", "steps of 4 KiB, one message at a time")
def many_empty_blocks(port: int, seconds: float) -> None:
    """The same over many connections at once."""
    body = _empty_blocks(GZIP_HEAD, bytes(8))
    _send(port, seconds, MANY_CONNECTIONS, lambda _: ("gzip", body))


@on("grpc", "16 members a message", agents=True)
def empty_members(port: int, seconds: float) -> None:
    """Messages of 4 MiB that are 200,000 members of gzip without content."""
    body = prefixed(EMPTY_MEMBER * (MESSAGE_BYTES // len(EMPTY_MEMBER)), b"\1")
    _send(port, seconds, CONNECTIONS, lambda _: ("gzip", body))


@on("grpc", "64 MiB of requests an address, decompressed")
def many_bombs(port: int, seconds: float) -> None:
    """Messages of 4 KiB that decompress to 4 MiB each, over many connections at once."""
    body = prefixed(BOMB, b"\1")
    _send(port, seconds, MANY_CONNECTIONS, lambda _: ("gzip", body))


@on("grpc", "the call ends", agents=True)
def truncated_gzip(port: int, seconds: float) -> None:
    """Compressed messages that end early, anywhere."""

    def some(turn: int) -> Request:
        whole = BOMB if turn % 10 == 0 else SMALL
        return "gzip", prefixed(whole[: int.from_bytes(os.urandom(2), "big") % len(whole)], b"\1")

    _send(port, seconds, CONNECTIONS, some)


@on("grpc", "the call ends", agents=True)
def wrong_encodings(port: int, seconds: float) -> None:
    """Messages that are not what their call says: another compression, none, one that there is not."""
    kinds = (
        ("gzip", prefixed(zlib.compress(bytes(1000)), b"\1")),
        ("deflate", prefixed(SMALL, b"\1")),
        ("identity", prefixed(SMALL, b"\1")),
        ("gzip", prefixed(os.urandom(1000), b"\1")),
        ("gzip", prefixed(SMALL, b"\2")),
        ("gzip", prefixed(b"", b"\1")),
        ("gzip, gzip", prefixed(gzip.compress(SMALL), b"\1")),
        ("snappy", prefixed(SMALL, b"\1")),
        ("x" * 4000, prefixed(SMALL, b"\1")),
        ("gzip", prefixed(SMALL)),
    )
    _send(port, seconds, CONNECTIONS, lambda turn: kinds[turn % len(kinds)])
