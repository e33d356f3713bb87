"""Large requests in pieces, parsed on a thread: a lookup waits for one piece at most."""

from __future__ import annotations

from functools import partial

from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from namesrv.app.access import sharer_of
from namesrv.app.field_rules import check_topic_count
from namesrv.app.worker import Worker
from namesrv.app.writer import LARGE_BYTES, TableWriter
from namesrv.core.errors import limit_exceeded
from namesrv.core.pace import yield_point
from namesrv.engines.api import EndOfPiece
from namesrv.limits import MAX_MESSAGE_BYTES
from namesrv_common.server.rpc_handlers import Context, LargeRequests, MessageT

PIECE_BYTES = 32 * 1024
"""At least so many bytes are parsed in one call, unless they are too many fields: a tenth of a millisecond, for which
the interpreter cannot change hands."""

PIECE_FIELDS = 1_500
"""Most fields of the request itself that are parsed in one call: as many topics have some 32 KiB."""


class RequestsInPieces(LargeRequests):
    """Parses large requests round robin by owner: registrations on the writer's thread, others on the reader's.

    A single field is never cut, nor are the bytes after a group or bytes that are no message. Such a piece may have
    4 MiB, which is one call of 20 ms.
    """

    def __init__(self, writer: TableWriter, reader: Worker, end_of_piece: EndOfPiece) -> None:
        super().__init__()
        self._writer = writer
        self._reader = reader
        self._end_of_piece = end_of_piece

    async def parsed(self, message: type[MessageT], request: bytes, context: Context) -> MessageT:
        """Returns the request as a message.

        Raises:
            DecodeError: It is no such message.
            LIMIT_EXCEEDED: It has too many topics, or a field that is too large.
        """
        parse, owner = partial(self._piece_by_piece, message, request), sharer_of(context).name
        if message is RegisterBrokerRequest:
            return await self._writer.read(parse, owner, is_large=len(request) > LARGE_BYTES, is_next=False)
        return await self._reader.run(parse, owner)

    def _piece_by_piece(self, kind: type[MessageT], request: bytes) -> MessageT:
        message = kind()
        end = 0
        while end < len(request):
            yield_point()
            begin, end = end, self._end_of_piece(request, end, PIECE_BYTES, PIECE_FIELDS)
            if end - begin > MAX_MESSAGE_BYTES:
                raise limit_exceeded("bytes of one field", end - begin, MAX_MESSAGE_BYTES)
            message.MergeFromString(request[begin:end])
            if isinstance(message, RegisterBrokerRequest):
                check_topic_count(len(message.topic_configs))  # at once: empty ones take 20 times their bytes
        return message
