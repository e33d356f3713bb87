"""The handlers of the name server's calls: the shared ones, with its admission, bounds, errors and pages."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection, reflection_pb2
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from namesrv import limits
from namesrv.app.access import Admission, Authorizer, FairShares, sharer_of
from namesrv.app.field_rules import check_topic_count
from namesrv.app.worker import Worker
from namesrv.app.writer import LARGE_BYTES, TableWriter
from namesrv.core.errors import invalid_field, limit_exceeded
from namesrv.core.pace import yield_point
from namesrv.engines.api import EndOfPiece, EngineServer
from namesrv.error_codes import FAILURES
from namesrv.limits import MAX_MESSAGE_BYTES
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.health_service import SERVICE as HEALTH
from namesrv_common.server.health_service import ShareGate
from namesrv_common.server.rpc_handlers import CallHandlers, Context, ParseLarge

# Pages of all paged calls: which rows a request asks for, and the token of the next page.
#
# A token has a hash of its call with all parameters but the page's size, and the last position. It stays valid while
# the tables change, and across a restart.

_HASH_BYTES = 6
"""A multiple of three: the hash and the position are encoded apart from each other."""

_MAX_NUMBER = 2**63 - 1
"""The largest number of a position: the database has 64 bits for it."""

RowT = TypeVar("RowT")
PositionT = TypeVar("PositionT", bound=NamedTuple)


class Name(NamedTuple):
    """The position in a list of names."""

    name: str


class AsksForPage(Protocol):
    """A request for a page."""

    page_size: int
    page_token: str

    def CopyFrom(self, other: Self, /) -> None: ...


class PageAsked(NamedTuple, Generic[PositionT]):
    """The page that a request asks for."""

    request: AsksForPage
    after: PositionT
    """The position of the last row of the page before."""
    size: int

    @property
    def limit(self) -> int:
        """The number of rows to look for. One more than fits tells whether there is a next page."""
        return self.size + 1

    def cut(
        self, found: Sequence[RowT], position: Callable[[RowT], PositionT], fitting: int = limits.MAX_PAGE_SIZE
    ) -> tuple[Sequence[RowT], str]:
        """Returns the rows of the page, and the token of the next one, which is empty if this is the last.

        Args:
            fitting: How many rows fit into the answer.
        """
        page = found[: min(self.size, fitting)]
        return page, token_after(self.request, position(page[-1])) if len(page) < len(found) else ""


def paged(
    request: AsksForPage, start: PositionT, *, most: int = limits.MAX_PAGE_SIZE, default: int = limits.DEFAULT_PAGE_SIZE
) -> PageAsked[PositionT]:
    """Reads which page a request asks for.

    Args:
        start: A position before all rows. Each part of their positions is greater, and of the same type.
        most: The largest page.
        default: The size of a page if the request has none.

    Raises:
        INVALID_FIELD: The size is negative, or the token is not of this call.
    """
    if request.page_size < 0:
        raise invalid_field("page_size", f"is {request.page_size}, must not be negative")
    after = _position(request, start) if request.page_token else start
    return PageAsked(request, after, min(request.page_size or default, most))


def token_after(request: AsksForPage, position: tuple[str | int, ...]) -> str:
    """The token of the page after a position, for the call and the parameters of a request."""
    return base64.urlsafe_b64encode(_hash_of(request) + _text_of(position).encode()).decode()


def _position(request: AsksForPage, start: PositionT) -> PositionT:
    with contextlib.suppress(binascii.Error, ValueError):
        token = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
        text = token[_HASH_BYTES:].decode()
        texts = text.split("\n", len(start) - 1)
        parts = [type(first)(part) for first, part in zip(start, texts, strict=True)]
        is_own = token[:_HASH_BYTES] == _hash_of(request) and text == _text_of(parts)
        is_after = all(first < part for first, part in zip(start, parts, strict=True))
        if is_own and is_after and not any(isinstance(part, int) and part > _MAX_NUMBER for part in parts):
            return start._make(parts)
    problem = "is not a next_page_token of this call with these parameters; pass it on unchanged"
    raise invalid_field("page_token", problem)


def _text_of(position: Iterable[str | int]) -> str:
    return "\n".join(map(str, position))


def _hash_of(request: AsksForPage) -> bytes:
    asked = type(request)()
    asked.CopyFrom(request)
    asked.page_size, asked.page_token = 0, ""
    message = cast("Message", asked)
    call, parameters = message.DESCRIPTOR.full_name.encode(), message.SerializeToString(deterministic=True)
    return hashlib.blake2b(call + b"\0" + parameters, digest_size=_HASH_BYTES).digest()


# Requests in pieces, and the handlers of all services.

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
        large_streams=LARGE_STREAMS,
    )


def handlers_for_everybody(slow_reader_seconds: float, shares: FairShares) -> CallHandlers:
    """Makes the handlers of health and reflection, which need no permit: each address has a share of the calls."""
    gates = {HEALTH.full_name: ShareGate(shares.probes), REFLECTION.full_name: ShareGate(shares.reflections)}
    return CallHandlers(
        FAILURES, slow_reader_seconds, gate_of=lambda method: gates[method.containing_service.full_name]
    )


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
