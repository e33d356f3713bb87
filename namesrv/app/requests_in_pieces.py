"""Large requests in pieces, parsed on a thread: a lookup waits for one piece at most."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import Protocol

from google.protobuf.message import Message
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from groundwork.rpc_handlers import MessageT
from namesrv.app.worker import Worker
from namesrv.app.writer import PARSING, TableWriter
from namesrv.core.pace import breathe

PIECE_BYTES = 32 * 1024
"""At least so many bytes are parsed in one call, unless they are too many fields: a tenth of a millisecond, for which
the interpreter cannot change hands."""

PIECE_FIELDS = 1_500
"""Most fields of the request itself that are parsed in one call: as many topics have some 32 KiB."""


class EndOfPiece(Protocol):
    """Where a piece of a message ends, so that all pieces, merged one after the other, are the same message."""

    def __call__(self, request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
        """The end of the piece that begins there; what cannot be cut is one piece."""


def in_one_piece(request: bytes, _begin: int, _least_bytes: int, _most_fields: int, /) -> int:
    """For engines that cannot look into messages: in Python it would take twice as long as the parsing."""
    return len(request)


class RequestsInPieces:
    """Parses one large request of a kind at a time: registrations on the writer's thread, others on the reader's.

    A single field is never cut, nor are the bytes after a group or bytes that are no message. So a topic
    with a mapping of four megabytes is one call of 20 ms, as the largest request is on an engine that cannot look into
    messages.
    """

    def __init__(self, writer: TableWriter, reader: Worker, end_of_piece: EndOfPiece = in_one_piece) -> None:
        self._writer = writer
        self._reader = reader
        self._end_of_piece = end_of_piece
        self._turns: defaultdict[type[Message], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Whose turn it is, of requests of a kind: a large lookup waits for no registration but the slice under way."""

    @classmethod
    def of(cls, server: object, writer: TableWriter, reader: Worker) -> RequestsInPieces:
        return cls(writer, reader, getattr(server, "end_of_piece", in_one_piece))

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message, when its turn has come. Raises DecodeError."""
        async with self._turns[message]:
            parse = partial(self._piece_by_piece, message, request)
            if message is RegisterBrokerRequest:
                return await self._writer.read(parse, PARSING)
            return await self._reader.run(parse)

    def _piece_by_piece(self, kind: type[MessageT], request: bytes) -> MessageT:
        message = kind()
        end = 0
        while end < len(request):
            breathe()
            begin, end = end, self._end_of_piece(request, end, PIECE_BYTES, PIECE_FIELDS)
            message.MergeFromString(request[begin:end])
        return message
