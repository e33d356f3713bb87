"""gRPC's messages on the wire: five bytes that declare a length, and as many bytes.

The declared length is checked before the bytes are collected, and a compressed message is unpacked no further than the
limit: a declared length takes no memory.
"""

from __future__ import annotations

import struct
import zlib

import grpc

from namesrv.config.limits import MAX_MESSAGE_BYTES

_PREFIX = struct.Struct("!BI")
_COMPRESSED = 1

ENCODINGS = ("identity", "deflate", "gzip")
"""The encodings of requests. Answers are not compressed: routes are small."""

_WINDOW_BITS = {"deflate": zlib.MAX_WBITS, "gzip": 16 + zlib.MAX_WBITS}


class RefusedRequest(Exception):
    """A request breaks gRPC's format, or is too large. Holds the status to end the call with."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


def framed(message: bytes) -> bytes:
    """A message as it goes over the wire."""
    return _PREFIX.pack(0, len(message)) + message


def whole_message(body: bytes) -> bytes | None:
    """The message of a body that has exactly one, not compressed; None unless that is certain."""
    size = len(body) - _PREFIX.size
    return (
        body[_PREFIX.size :]
        if 0 <= size <= MAX_MESSAGE_BYTES and body[: _PREFIX.size] == _PREFIX.pack(0, size)
        else None
    )


class MessageReader:
    """Cuts the body of a request into messages."""

    def __init__(self, max_bytes: int, encoding: str = "identity") -> None:
        """Makes it.

        Raises:
            RefusedRequest: The encoding is not supported.
        """
        if encoding not in ENCODINGS:
            raise RefusedRequest(grpc.StatusCode.UNIMPLEMENTED, f"no such compression here: {encoding[:32]}")
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._held = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Takes received bytes.

        Raises:
            RefusedRequest: The message that begins declares more bytes than it may have.
        """
        self._held += chunk
        if len(self._held) >= _PREFIX.size:
            self._declared()

    def next(self) -> bytes | None:
        """The next message; None until all of it is there.

        Raises:
            RefusedRequest: It is too large, or not compressed as was declared.
        """
        if len(self._held) < _PREFIX.size:
            return None
        flags, size = self._declared()
        end = _PREFIX.size + size
        if len(self._held) < end:
            return None
        message = bytes(memoryview(self._held)[_PREFIX.size : end])
        del self._held[:end]
        return self._unpacked(message) if flags & _COMPRESSED else message

    def _declared(self) -> tuple[int, int]:
        flags, size = _PREFIX.unpack_from(self._held)
        if size > self._max_bytes:
            raise self._too_large(size)
        return flags, size

    def _unpacked(self, message: bytes) -> bytes:
        if self._encoding == "identity":
            raise RefusedRequest(
                grpc.StatusCode.INTERNAL, "a message is compressed, and grpc-encoding does not say how"
            )
        unpacker = zlib.decompressobj(_WINDOW_BITS[self._encoding])
        try:
            unpacked = unpacker.decompress(message, self._max_bytes + 1)
        except zlib.error:
            raise self._broken() from None
        if len(unpacked) > self._max_bytes:
            raise self._too_large(len(unpacked))
        if not unpacker.eof:
            raise self._broken()
        return unpacked

    def _broken(self) -> RefusedRequest:
        return RefusedRequest(grpc.StatusCode.INTERNAL, f"a message cannot be unpacked as {self._encoding}")

    def _too_large(self, size: int) -> RefusedRequest:
        # The same words as grpcio's, so that a client need not know which engine runs.
        details = f"Received message larger than max ({size} vs. {self._max_bytes})"
        return RefusedRequest(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
