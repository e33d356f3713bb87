"""Large requests in pieces: parsed between slices of changes of the tables, so that a lookup waits for neither long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from groundwork.grpc_handlers.large_requests import MessageT
from namesrv.core.slices import Sliced
from namesrv.server.background.table_writer import TableWriter

PIECE_BYTES = 32 * 1024
"""What is parsed before giving way: a tenth of a millisecond, for 1,500 topics."""

EndsOfPieces = Callable[[bytes, int], Sequence[int]]
"""Where the pieces of a message end that have so many bytes each, and make the same message when they are merged."""


def in_one_piece(request: bytes, _least: int) -> Sequence[int]:
    """For engines that cannot look into messages: in Python it would take twice as long as the parsing."""
    return (len(request),)


class RequestsInPieces:
    """Parses one large request at a time; its pieces and slices of changes take turns."""

    def __init__(self, writer: TableWriter, ends_of_pieces: EndsOfPieces = in_one_piece) -> None:
        self._writer = writer
        self._ends_of_pieces = ends_of_pieces
        self._turn = asyncio.Lock()

    @classmethod
    def of(cls, server: object, writer: TableWriter) -> RequestsInPieces:
        """For a server of any engine."""
        return cls(writer, getattr(server, "ends_of_pieces", in_one_piece))

    async def parsed(self, message: type[MessageT], request: bytes) -> MessageT:
        """The request as a message, when its turn has come. Raises DecodeError."""
        async with self._turn:
            return await self._writer.beside_changes(self._piece_by_piece(message(), request))

    def _piece_by_piece(self, message: MessageT, request: bytes) -> Sliced[MessageT]:
        whole, begin = memoryview(request), 0
        for end in self._ends_of_pieces(request, PIECE_BYTES):
            message.MergeFromString(whole[begin:end])  # type: ignore[arg-type]  # takes any bytes-like object
            begin = end
            yield
        return message
