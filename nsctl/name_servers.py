"""Calls to one name server or agent, to the first that answers, or to all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import grpc
from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub
from google.protobuf.message import Message
from namesrv_api.v1.admin_service_pb2_grpc import AdminServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.connections.call_errors import MAX_ANSWER_BYTES, CallError
from groundwork.connections.channels import ClientSecurity, open_channel
from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError

AnswerT = TypeVar("AnswerT")
Service = Callable[[grpc.Channel], object]

NAMESRV_SERVICES: tuple[Service, ...] = (RouteServiceStub, AdminServiceStub)
AGENT_SERVICES: tuple[Service, ...] = (BrokerAgentServiceStub,)


@dataclass(frozen=True, slots=True)
class Answer(Generic[AnswerT]):
    """What one of several name servers said."""

    endpoint: Endpoint
    value: AnswerT | None
    """None if it failed."""
    error: CallError | None


class NameServer:
    """One name server, or an agent. All calls raise CallError."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        security: ClientSecurity | None = None,
        services: Sequence[Service] = NAMESRV_SERVICES,
    ) -> None:
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_retries", 0)]
        self._connection = open_channel(endpoint, options, security)
        self._stubs = [service(self._connection) for service in services]

    def call(self, name: str, request: Message) -> Message:
        """Makes a unary call of the contract by its name, such as ``GetTopicRoute``."""
        try:
            return cast("Message", self._method(name)(request, timeout=self.timeout_seconds))
        except grpc.RpcError as error:
            raise CallError(self.endpoint, RichError.of(error)) from error

    def stream(self, name: str, request: Message, timeout_seconds: float | None) -> Iterator[Message]:
        """Makes a streaming call; yields its answers as they come."""
        call = self._method(name)(request, timeout=timeout_seconds)
        try:
            yield from call
        except grpc.RpcError as error:
            raise CallError(self.endpoint, RichError.of(error)) from error
        finally:
            call.cancel()  # type: ignore[no-untyped-call]

    def pages(self, name: str, request: Message) -> Iterator[Message]:
        """All pages of a list; the request's page token is overwritten."""
        while True:
            answer = self.call(name, request)
            yield answer
            token = answer.next_page_token  # type: ignore[attr-defined]
            if not token:
                return
            request.page_token = token  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _method(self, name: str) -> Callable[..., grpc.CallIterator[Message]]:
        methods = (getattr(stub, name, None) for stub in self._stubs)
        method: Callable[..., grpc.CallIterator[Message]] = next(method for method in methods if method is not None)
        return method


class NameServers:
    """The name servers, or agents, that a command is about."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        timeout_seconds: float,
        security: ClientSecurity | None = None,
        services: Sequence[Service] = NAMESRV_SERVICES,
    ) -> None:
        self.all = tuple(NameServer(endpoint, timeout_seconds, security, services) for endpoint in endpoints)

    def first(self, ask: Callable[[NameServer], AnswerT]) -> AnswerT:
        """The answer of the first one that gives one.

        Raises:
            CallError: One of them refused what was asked, or none could be reached; then it is the last one's.
        """
        failed: CallError | None = None
        for server in self.all:
            try:
                return ask(server)
            except CallError as error:
                if not error.unreachable:
                    raise
                failed = error
        assert failed is not None, "there is at least one name server"
        raise failed

    def each(self, ask: Callable[[NameServer], AnswerT]) -> list[Answer[AnswerT]]:
        """Every one's answer, asked at the same time, in the order they were named."""

        def answer(server: NameServer) -> Answer[AnswerT]:
            try:
                return Answer(server.endpoint, ask(server), None)
            except CallError as error:
                return Answer(server.endpoint, None, error)

        with ThreadPoolExecutor(len(self.all)) as pool:
            return list(pool.map(answer, self.all))

    def close(self) -> None:
        """Closes all connections."""
        for server in self.all:
            server.close()
