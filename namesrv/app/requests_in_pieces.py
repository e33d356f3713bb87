"""Large requests in pieces: parsed between slices of changes of the tables, so that a lookup waits for neither long."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Protocol

from google.protobuf.message import Message

from groundwork.rpc_handlers import MessageT
from namesrv.app.writer import TableWriter
from namesrv.core.slices import Sliced

PIECE_BYTES = 32 * 1024
"""At least so many bytes are parsed before giving way, unless they are too many fields: a tenth of a millisecond."""

PIECE_FIELDS = 1_500
"""Most fields of the request itself that are parsed before giving way: as many topics have some 32 KiB."""


class EndOfPiece(Protocol):
    """Where a piece of a message ends, so that all pieces, merged one after the other, are the same message."""

    def __call__(self, request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
        """The end of the piece that begins there; what cannot be cut is one piece."""


def in_one_piece(request: bytes, _begin: int, _least_bytes: int, _most_fields: int, /) -> int:
    """For engines that cannot look into messages: in Python it would take twice as long as the parsing."""
    return len(request)


class RequestsInPieces:
    """Parses one large request of a kind at a time; its pieces and slices of changes take turns.

    One field is never cut, nor is what follows a group or is no message. So a topic with a mapping of four megabytes is
    one step of 20 ms, as the largest request is on an engine that cannot look into messages.
    """

    def __init__(self, writer: TableWriter, end_of_piece: EndOfPiece = in_one_piece) -> None:
        self._writer = writer
        self._end_of_piece = end_of_piece
        self._turns: defaultdict[type[Message], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Whose turn it is, of requests of a kind: a large lookup waits for no registration but the slice under way."""

    @classmethod
    def of(cls, server: object, writer: TableWriter) -> RequestsInPieces:
        return cls(writer, getattr(server, "end_of_piece", in_one_piece))

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message, when its turn has come. Raises DecodeError."""
        async with self._turns[message]:
            return await self._writer.interleave(self._piece_by_piece(message(), request))

    def _piece_by_piece(self, message: MessageT, request: bytes) -> Sliced[MessageT]:
        end = 0
        while end < len(request):
            if end:
                yield
            begin, end = end, self._end_of_piece(request, end, PIECE_BYTES, PIECE_FIELDS)
            message.MergeFromString(request[begin:end])
        return message
