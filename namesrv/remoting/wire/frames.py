"""Frames: what a connection brings, cut into header and body. Every length is checked before anything is made of it."""

from __future__ import annotations

import struct
from typing import NamedTuple

from namesrv.remoting.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from namesrv.remoting.wire.foreign import TELLING_BYTES, foreign

JSON_HEADER = 0
BINARY_HEADER = 1
"""Encodings of headers (RocketMQ: SerializeType)."""

_PREFIX = struct.Struct(">II")
_LENGTH_BYTES = 4
_HEADER_LENGTH_MASK = 0xFF_FFFF


class BrokenFrame(Exception):
    """Bytes that are no frame: the connection has to be closed, as nobody knows where the next one begins."""


class Frame(NamedTuple):
    """One frame."""

    encoding: int
    """Of the header: JSON_HEADER or BINARY_HEADER."""
    header: bytes
    body: bytes


class FrameReader:
    """Frames of one connection, in the order they came."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._begun = bytearray()
        """A frame of which not all has come."""
        self.needed = 0
        """Bytes of that frame when it is whole; 0: there is none."""

    def feed(self, data: bytes) -> None:
        """Takes what the connection brought. It costs nothing but room until a whole frame is there."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self.needed:
                return
            data, self._begun = bytes(self._begun), bytearray()
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data, self._at = data, 0

    def next(self) -> Frame | None:
        """The next whole frame; None if there is none yet. Raises BrokenFrame if what comes next is none."""
        data, at = self._data, self._at
        left = len(data) - at
        if left < _PREFIX.size:
            if left:
                self._wait(_PREFIX.size)
            return None
        length, word = _PREFIX.unpack_from(data, at)
        header_length = word & _HEADER_LENGTH_MASK
        if not header_length + _LENGTH_BYTES <= length <= MAX_FRAME_BYTES - _LENGTH_BYTES:
            other = foreign(data[at : at + TELLING_BYTES])
            raise BrokenFrame(other or f"a frame of {length} bytes with a header of {header_length}")
        if header_length > MAX_HEADER_BYTES:
            raise BrokenFrame(f"a header of {header_length} bytes, at most {MAX_HEADER_BYTES}")
        end = at + _LENGTH_BYTES + length
        if end > len(data):
            self._wait(end - at)
            return None
        self.needed = 0
        self._at = end
        header_at = at + _PREFIX.size
        body_at = header_at + header_length
        return Frame(word >> 24, data[header_at:body_at], data[body_at:end])

    @property
    def held(self) -> int:
        """Bytes that have come and of which no frame was made yet."""
        return len(self._begun) + len(self._data) - self._at

    def _wait(self, needed: int) -> None:
        self._begun = bytearray(self._data[self._at :])
        self._data, self._at = b"", 0
        self.needed = needed
