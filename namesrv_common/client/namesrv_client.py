"""A client of name servers for threads: typed calls, pages of lists, and streams within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message
from namesrv_api.v1.admin_service_pb2_grpc import AdminServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub
from namesrv_internal.v1.diagnostics_service_pb2_grpc import DiagnosticsServiceStub

from namesrv_common.client.channels import (
    ConnectionSettings,
    ResponseBudget,
    ResponseLimits,
    ResponseTooLarge,
    Security,
    open_channel,
    rows_in,
)
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

PLAIN = ConnectionSettings()
"""For a call now and then: all is left to gRPC."""

STREAM_LIMITS = ResponseLimits(bytes=2 << 30, rows=4_000_000)
"""The most that a stream with a deadline may bring. Each topic is a row. 1,000,000 topics on ten groups each have 450
MB. The reader of a stream without a deadline bounds it."""

LIST_LIMITS = ResponseLimits(bytes=512 << 20, rows=4_000_000, seconds=600.0)
"""The most that all pages of a list may bring: the names of 1,000,000 topics have at most 260 MB, in 1,000 pages."""

MAX_PAGES = 20_000
"""Most pages of a list: each may be empty, and name a next one."""


def _too_much(endpoint: Endpoint, problem: str) -> CallError:
    # The code of a server that breaks the contract: another one is asked.
    return CallError(endpoint, RichError(grpc.StatusCode.INTERNAL, f"sends too much: {problem}"))


class Client:
    """A connection to a server. Calls of stubs over ``channel``, and the methods here, raise CallError."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        security: Security | None = None,
        *,
        settings: ConnectionSettings = PLAIN,
    ) -> None:
        """Connects at the first call.

        Args:
            timeout_seconds: Time for one call with one answer.
            security: Certificates, authorities and token. None means no TLS.
        """
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._connection = open_channel(endpoint, settings.options, security)
        self.channel = cast("grpc.Channel", _Calls(self._connection, endpoint, timeout_seconds))
        """For stubs, whose calls with one answer get the client's timeout."""

    def stream(
        self, method: Callable[..., grpc.CallIterator[ResponseT]], sent: object, timeout_seconds: float | None
    ) -> Generator[ResponseT, None, None]:
        """Makes a streaming call; yields its answers as they come. Ends the call when it is closed.

        Args:
            sent: The request, or an iterator of requests.
            timeout_seconds: Time for the whole stream. None means no limit.
        """
        call = method(sent, timeout=timeout_seconds)
        budget = None if timeout_seconds is None else ResponseBudget(_name_of(sent), STREAM_LIMITS)
        try:
            for answer in call:
                if budget is not None:
                    self._count(answer, budget)
                yield answer
        except grpc.RpcError as error:
            raise CallError(self.endpoint, RichError.of(error)) from error
        finally:
            call.cancel()  # type: ignore[no-untyped-call]

    def items(
        self, method: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT, field: str
    ) -> Iterator[Any]:
        """The items of all pages of a list, from that field of each."""
        name = _name_of(request)
        budget, asked = ResponseBudget(name, LIST_LIMITS), cast("Any", type(request)())
        asked.CopyFrom(request)  # others may read lists of it at the same time
        for count in itertools.count(1):
            answer = method(asked)
            if count > MAX_PAGES:
                problem = f"{count:,} pages of {name} so far, over the limit of {MAX_PAGES:,}"
                raise _too_much(self.endpoint, problem)
            self._count(answer, budget)
            yield from getattr(answer, field)
            asked.page_token = cast("Any", answer).next_page_token
            if not asked.page_token:
                return

    def _count(self, answer: Message, budget: ResponseBudget) -> None:
        try:
            budget.take(answer.ByteSize(), rows_in(answer))
        except ResponseTooLarge as error:
            raise _too_much(self.endpoint, str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NamesrvClient(Client):
    """One name server: ``client.admin.GetKvConfig(request)`` makes a call within the client's timeout."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        security: Security | None = None,
        *,
        settings: ConnectionSettings = PLAIN,
    ) -> None:
        super().__init__(endpoint, timeout_seconds, security, settings=settings)
        # At once: a stub that is made after the channel is closed ends the process.
        self.route = RouteServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.diagnostics = DiagnosticsServiceStub(self.channel)


class _Calls:
    """What stubs use of a channel: their calls with one answer raise CallError.

    An interceptor of gRPC would register each call anew, which ends the process after the channel is closed.
    """

    def __init__(self, channel: grpc.Channel, endpoint: Endpoint, timeout_seconds: float) -> None:
        self.unary_stream = channel.unary_stream
        self.stream_stream = channel.stream_stream
        self._channel = channel
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[[Message], Message]:
        call = self._channel.unary_unary(*args, **kwargs)

        def answer(request: Message) -> Message:
            try:
                return cast("Message", call(request, timeout=self._timeout_seconds))
            except grpc.RpcError as error:
                raise CallError(self._endpoint, RichError.of(error)) from error

        return answer


def _name_of(request: object) -> str:
    return type(request).__name__.removesuffix("Request")
