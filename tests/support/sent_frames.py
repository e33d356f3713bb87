"""Frames of RocketMQ's protocol as the engine passes them on, for tests without an engine."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from namesrv.engines.api import Again, FrameCall

MAX_FRAME_BYTES, MAX_HEADER_BYTES = 16 * 2**20, 512 * 2**10


class SentFrame(FrameCall):
    """A frame, and its answers."""

    def __init__(self, encoding: int, header: bytes, body: bytes = b"") -> None:
        self.encoding, self.header, self.body, self.peer = encoding, header, body, "127.0.0.1:40000"
        self.connection = 0
        self.answers: list[bytes] = []
        """One empty answer if nobody waits for one."""
        self.again: Again | None = None
        self.kept: Sequence[str] | None = None
        """The dependencies of an answer that may be kept."""
        self.is_released = self.is_closed = False

    @property
    def names(self) -> Mapping[str, Sequence[bytes]]:
        return {}

    def answer(self, frame: bytes) -> None:
        self.answers.append(frame)

    def may_keep(self, dependencies: Sequence[str], *, is_admitted: bool = True) -> None:
        self.kept = dependencies

    def may_repeat(self, again: Again) -> None:
        self.again = again

    def release(self) -> None:
        self.is_released = True

    @property
    def close(self) -> Callable[[], None]:
        return partial(setattr, self, "is_closed", True)


class NoFrame(Exception):
    """Bytes that are no frame."""


def first_frame(data: bytes) -> tuple[SentFrame, bytes] | None:
    """Returns the first frame and what follows it; None without a whole one. Raises NoFrame."""
    if len(data) < 8:
        return None
    length, word = struct.unpack_from(">II", data)
    header_length = word & 0xFF_FFFF
    if not header_length + 4 <= length <= MAX_FRAME_BYTES - 4 or header_length > MAX_HEADER_BYTES:
        raise NoFrame
    if len(data) < 4 + length:
        return None
    body_at = 8 + header_length
    return SentFrame(word >> 24, data[8:body_at], data[body_at : 4 + length]), data[4 + length :]


def frames_in(data: bytes) -> list[SentFrame]:
    """The whole frames that bytes begin with. Raises NoFrame."""
    found = []
    while (next_one := first_frame(data)) is not None:
        frame, data = next_one
        found.append(frame)
    return found
