"""Large requests: parsed one after another, so that others have their turn."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)


class LargeRequests(Protocol):
    """Parses requests for which room in memory was taken, of all calls together."""

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message. Raises DecodeError."""


class OneInATurn:
    """Parses one whole request in each turn of the event loop.

    A registration of 10,000 topics takes a millisecond, and after a restart all brokers send theirs at once.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message, when its turn has come. Raises DecodeError."""
        async with self._turn:
            parsed = message.FromString(request)
            await asyncio.sleep(0)
            return parsed
