"""Bounds on what a program accepts from a server that it calls: bytes, rows and time, counted while they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message


class ResponseTooLarge(Exception):
    """A server sent more than the program accepts. The text names the limit and the value, not the server."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """The most that one answer may bring, all of its messages together."""

    bytes: int
    """Encoded bytes."""
    rows: int
    """Rows, as the caller counts them."""
    seconds: float = math.inf
    """Time from the first message to the last; infinite where the call has a deadline."""


@dataclass(slots=True)
class ResponseBudget:
    """What one answer of several messages may still bring. The reader of the answer owns it."""

    what: str
    """The name of the answer in the error: "a snapshot"."""
    limits: ResponseLimits
    monotonic: Callable[[], float] = time.monotonic
    bytes: int = 0
    """Bytes that have come."""
    rows: int = 0
    """Rows that have come."""
    _began: float | None = None

    def take(self, encoded_bytes: int, rows: int = 0) -> None:
        """Counts a message. Raises ResponseTooLarge if the answer is over a limit now."""
        now = self.monotonic()
        if self._began is None:
            self._began = now
        self.bytes += encoded_bytes
        self.rows += rows
        counted = (
            ("bytes", self.bytes, self.limits.bytes),
            ("rows", self.rows, self.limits.rows),
            ("seconds", now - self._began, self.limits.seconds),
        )
        for unit, value, limit in counted:
            if value > limit:
                raise ResponseTooLarge(f"{self.what} has {value:,.0f} {unit} so far, over the limit of {limit:,.0f}")

    def begin_anew(self) -> None:
        """Forgets what has come, because nothing of it is held: the next message is the first one again."""
        self._began = None
        self.bytes = self.rows = 0


def rows_in(message: Message) -> int:
    """Returns the number of rows of a message: elements of its lists, and of the lists of the messages within it."""
    rows = 0
    for _, value in message.ListFields():
        match value:
            case Message():
                rows += rows_in(value)
            case str() | bytes() | int() | float():
                pass
            case _:
                rows += len(value)
    return rows
