"""The handlers of the name server's calls: the shared ones, with the name server's admission, bounds and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection, reflection_pb2
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from namesrv.app.access import Admission, Authorizer, FairShares, sharer_of
from namesrv.app.field_rules import check_topic_count
from namesrv.app.worker import Worker
from namesrv.app.writer import LARGE_BYTES, TableWriter
from namesrv.core.errors import limit_exceeded
from namesrv.core.pace import yield_point
from namesrv.engines.api import EndOfPiece, EngineServer, max_request_bytes
from namesrv.error_codes import FAILURES
from namesrv.limits import MAX_MESSAGE_BYTES
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.health_service import SERVICE as HEALTH
from namesrv_common.server.health_service import ShareGate
from namesrv_common.server.rpc_handlers import CallHandlers, Context, ParseLarge

__all__ = ["Context", "handlers_of_server"]

PIECE_BYTES = 32 * 1024
"""At least so many bytes are parsed in one call, unless they are too many fields: a tenth of a millisecond, for which
the interpreter cannot change hands."""

PIECE_FIELDS = 1_500
"""Most fields of the request itself that are parsed in one call: as many topics have some 32 KiB."""

REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

REFLECTION_NAMES = ("grpc.reflection.v1.ServerReflection", REFLECTION.full_name)
"""Its messages are the same bytes under both names; newer tools ask only for v1."""

LARGE_STREAMS = ("namesrv_api.v1.RouteService.WatchTopicRoutes",)
"""Streams whose requests may be as large as any: a watch names up to ten thousand topics."""


@dataclass
class RequestsInPieces:
    """Parses large requests round robin by owner: registrations on the writer's thread, others on the reader's.

    A single field is never cut, nor are the bytes after a group or bytes that are no message. Such a piece may have
    4 MiB, which is one call of 20 ms.
    """

    writer: TableWriter
    reader: Worker
    end_of_piece: EndOfPiece

    async def parsed(self, message: type[Message], request: bytes, context: Context) -> Message:
        """Returns the request as a message.

        Raises:
            DecodeError: It is no such message.
            LIMIT_EXCEEDED: It has too many topics, or a field that is too large.
        """
        parse, owner = partial(self._piece_by_piece, message, request), sharer_of(context).name
        if message is RegisterBrokerRequest:
            return await self.writer.read(parse, owner, is_large=len(request) > LARGE_BYTES, is_next=False)
        return await self.reader.run(parse, owner)

    def _piece_by_piece(self, kind: type[Message], request: bytes) -> Message:
        message = kind()
        end = 0
        while end < len(request):
            yield_point()
            begin, end = end, self.end_of_piece(request, end, PIECE_BYTES, PIECE_FIELDS)
            if end - begin > MAX_MESSAGE_BYTES:
                raise limit_exceeded("bytes of one field", end - begin, MAX_MESSAGE_BYTES)
            message.MergeFromString(request[begin:end])
            if isinstance(message, RegisterBrokerRequest):
                check_topic_count(len(message.topic_configs))  # at once: empty ones take 20 times their bytes
        return message


def handlers_of_server(
    slow_reader_seconds: float,
    *,
    observers: Sequence[CallObserver] = (),
    shares: FairShares | None = None,
    authorizer: Authorizer | None = None,
    parse_large: ParseLarge | None = None,
) -> CallHandlers:
    """Makes the handlers of a name server's services.

    Args:
        slow_reader_seconds: How long the reader of a stream may take nothing before it is cut.
        authorizer: Decides which calls a caller may make. None: all calls.
        parse_large: Parses large requests. None parses each in one step.
    """
    of_all = shares or FairShares()
    return CallHandlers(
        FAILURES,
        slow_reader_seconds,
        gate_of=lambda method: Admission(method, of_all, authorizer),
        parse_large=parse_large,
        observers=observers,
        max_request_bytes=_max_request_bytes,
        large_streams=LARGE_STREAMS,
    )


def handlers_for_everybody(slow_reader_seconds: float, shares: FairShares) -> CallHandlers:
    """Makes the handlers of health and reflection, which need no permit: each address has a share of the calls."""
    gates = {HEALTH.full_name: ShareGate(shares.probes), REFLECTION.full_name: ShareGate(shares.reflections)}
    return CallHandlers(
        FAILURES,
        slow_reader_seconds,
        gate_of=lambda method: gates[method.containing_service.full_name],
        max_request_bytes=_max_request_bytes,
    )


def _max_request_bytes(method: MethodDescriptor) -> int:
    return max_request_bytes(f"/{method.containing_service.full_name}/{method.name}")


# Reflection: the services, calls and messages of this server, for tools that do not have the contract at hand.


def add_reflection(server: EngineServer, handlers: CallHandlers, services: Iterable[str]) -> None:
    """Adds reflection of services, given by their full names, whose descriptors are in the default pool.

    It does not list itself, as grpcio-reflection has the descriptor of v1alpha alone.
    """
    servicer = reflection.aio.ReflectionServicer(services, pool=_Symbols())  # type: ignore[attr-defined]
    for name in REFLECTION_NAMES:
        server.add_handlers(name, handlers.of(REFLECTION, (servicer,)))


class _Symbols:
    """The default pool. ``FindFileContainingSymbol`` of a pool knows no methods, which grpcurl and ghz ask for."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is as in the default pool."""
        return getattr(Default(), name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """The file that defines what has this full name. Raises KeyError."""
        with contextlib.suppress(KeyError):
            return Default().FindFileContainingSymbol(symbol)
        return Default().FindMethodByName(symbol).containing_service.file
