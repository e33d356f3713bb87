"""gRPC's messages are cut from the bytes of a request, and no claim of a peer takes memory."""

from __future__ import annotations

import gzip
import struct
import zlib

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.server.engines.envoy.messages import MessageReader, RefusedRequest, framed

LIMIT = 1_000


def compressed(packed: bytes) -> bytes:
    return struct.pack("!BI", 1, len(packed)) + packed


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 20))
def test_messages_are_found_however_their_bytes_arrive(messages: list[bytes], step: int) -> None:
    reader, data = MessageReader(LIMIT), b"".join(map(framed, messages))
    found = []
    for begin in range(0, len(data), step):
        reader.feed(data[begin : begin + step])
        while (message := reader.next()) is not None:
            found.append(message)
    assert found == messages


def test_a_message_may_have_its_limit_and_is_refused_by_what_it_declares_beyond() -> None:
    reader = MessageReader(LIMIT)
    reader.feed(framed(bytes(LIMIT)))
    assert reader.next() == bytes(LIMIT)
    with pytest.raises(RefusedRequest, match=r"larger than max \(4294967295 vs. 1000\)") as caught:
        reader.feed(struct.pack("!BI", 0, 0xFFFF_FFFF))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_message_is_unpacked_up_to_the_limit(encoding: str, pack: object) -> None:
    assert callable(pack)
    reader = MessageReader(LIMIT, encoding)
    reader.feed(compressed(pack(bytes(LIMIT))))
    assert reader.next() == bytes(LIMIT)
    reader.feed(compressed(pack(bytes(LIMIT + 1))))
    with pytest.raises(RefusedRequest, match=r"\(1001 vs. 1000\)"):
        reader.next()


def test_a_bomb_is_not_unpacked_beyond_the_limit() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    reader = MessageReader(20_000, "gzip")
    reader.feed(compressed(bomb))
    with pytest.raises(RefusedRequest, match=r"\(20001 vs. 20000\)"):
        reader.next()


@pytest.mark.parametrize(
    ("encoding", "packed", "problem"),
    [
        ("identity", b"x", "grpc-encoding does not say how"),
        ("gzip", b"no gzip", "cannot be unpacked as gzip"),
        ("gzip", gzip.compress(b"cut off", mtime=0)[:-3], "cannot be unpacked as gzip"),
    ],
)
def test_a_message_that_is_not_compressed_as_it_says_is_refused(encoding: str, packed: bytes, problem: str) -> None:
    reader = MessageReader(LIMIT, encoding)
    reader.feed(compressed(packed))
    with pytest.raises(RefusedRequest, match=problem) as caught:
        reader.next()
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_an_unknown_compression_is_unimplemented() -> None:
    with pytest.raises(RefusedRequest, match="no such compression here: br") as caught:
        MessageReader(LIMIT, "br")
    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
