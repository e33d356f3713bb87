"""Streams that an engine can send the same message to, many at once, as those see it who tell them of changes.

A stream's own task sends what it makes for this stream alone, and waits for a reader who is slow. Engines without such
streams have each task woken instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, cast


class SharedWriter(Protocol):
    """The context of such a stream."""

    @property
    def is_free(self) -> bool:
        """Whether the client has taken the last message, so that another one can leave at once."""

    def write_to_all(self, streams: Sequence[Self], message: bytes) -> None:
        """Sends a message to free streams of the same server, without their tasks."""


def shared_writer(context: object) -> SharedWriter | None:
    """The context of a stream, if its engine can send the same message to many at once."""
    return cast("SharedWriter", context) if hasattr(context, "write_to_all") else None
