"""Large requests in pieces, parsed on a thread: a lookup waits for one piece at most."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import Protocol

from google.protobuf.message import Message
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from groundwork.rpc_handlers import MessageT
from namesrv.app.field_rules import check_topic_count
from namesrv.app.worker import Worker
from namesrv.app.writer import PARSING, TableWriter
from namesrv.core.errors import limit_exceeded
from namesrv.core.pace import breathe
from namesrv.limits import MAX_MESSAGE_BYTES

PIECE_BYTES = 32 * 1024
"""At least so many bytes are parsed in one call, unless they are too many fields: a tenth of a millisecond, for which
the interpreter cannot change hands."""

PIECE_FIELDS = 1_500
"""Most fields of the request itself that are parsed in one call: as many topics have some 32 KiB."""

LONGEST_VARINT = 10
"""Bytes of the longest number."""


class EndOfPiece(Protocol):
    """Where a piece of a message ends, so that all pieces, merged one after the other, are the same message."""

    def __call__(self, request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
        """The end of the piece that begins there; what cannot be cut is one piece."""


def end_of_piece(request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
    """Cuts requests for engines that cannot look into messages: only those that are too large for one piece.

    Python takes several times as long to find where fields end as to parse them.
    """
    if len(request) <= MAX_MESSAGE_BYTES:
        return len(request)
    return end_of_fields(request, begin, least_bytes, most_fields)


def end_of_fields(request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
    """Cuts between fields, as native does."""
    end = begin
    for _ in range(most_fields):
        end = _end_of_field(request, end)
        if end - begin >= least_bytes or end >= len(request):
            break
    return min(end, len(request))


def _end_of_field(request: bytes, begin: int) -> int:
    """Where a field ends; the end of the request or beyond if it is a group or no field."""
    tag, end = _varint(request, begin)
    match tag & 7:
        case 0:  # a varint
            return _varint(request, end)[1]
        case 1:
            return end + 8
        case 2:  # bytes, with their length before them
            length, end = _varint(request, end)
            return end + length
        case 5:
            return end + 4
        case _:
            return len(request)


def _varint(request: bytes, begin: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for index, byte in enumerate(request[begin : begin + LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, begin + index + 1
    return 0, len(request)


class RequestsInPieces:
    """Parses one large request of a kind at a time: registrations on the writer's thread, others on the reader's.

    A single field is never cut, nor are the bytes after a group or bytes that are no message. Such a piece may have
    4 MiB, which is one call of 20 ms; so is a request of 4 MiB on an engine that cannot look into messages.
    """

    def __init__(self, writer: TableWriter, reader: Worker, end_of_piece: EndOfPiece = end_of_piece) -> None:
        self._writer = writer
        self._reader = reader
        self._end_of_piece = end_of_piece
        self._turns: defaultdict[type[Message], asyncio.Lock] = defaultdict(asyncio.Lock)
        """Whose turn it is, of requests of a kind: a large lookup waits for no registration but the slice under way."""

    @classmethod
    def of(cls, server: object, writer: TableWriter, reader: Worker) -> RequestsInPieces:
        return cls(writer, reader, getattr(server, "end_of_piece", end_of_piece))

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message, when its turn has come.

        Raises:
            DecodeError: It is no such message.
            LIMIT_EXCEEDED: It has too many topics, or a field that is too large.
        """
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
            if end - begin > MAX_MESSAGE_BYTES:
                raise limit_exceeded("bytes of one field", end - begin, MAX_MESSAGE_BYTES)
            message.MergeFromString(request[begin:end])
            if isinstance(message, RegisterBrokerRequest):
                check_topic_count(len(message.topic_configs))  # at once: empty ones take 20 times their bytes
        return message
