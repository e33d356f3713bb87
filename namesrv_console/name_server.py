"""Calls to one name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import Message
from namesrv_api.v1.admin_service_pb2_grpc import AdminServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.connections.call_errors import MAX_ANSWER_BYTES, CallError
from groundwork.connections.channels import ClientSecurity, open_aio_channel
from groundwork.endpoints import Endpoint
from groundwork.rich_errors import FailedCall, RichError


class Calls(Protocol):
    """What the rest of the console needs of a name server. All calls raise CallError."""

    @property
    def endpoint(self) -> Endpoint:
        """Its address."""

    async def call(self, name: str, request: Message) -> Message:
        """Makes a unary call of the contract by its name, such as ``GetTopicRoute``."""

    def stream(self, name: str, request: Message) -> AsyncIterator[Message]:
        """Makes a streaming call; yields its answers as they come."""


class NameServer:
    """One name server over gRPC. Belongs to the event loop that it was made in."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float, security: ClientSecurity | None = None) -> None:
        """Takes its address, the time for one call, and what to show and what to check; None: no TLS."""
        self.endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        options = (
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.enable_retries", 0),
            # A name server that is back is seen within seconds, not within gRPC's two minutes.
            ("grpc.max_reconnect_backoff_ms", 2_000),
        )
        self._connection = open_aio_channel(endpoint, options, security)
        self._stubs = (RouteServiceStub(self._connection), AdminServiceStub(self._connection))

    async def call(self, name: str, request: Message) -> Message:
        """As Calls says."""
        try:
            return cast("Message", await self._method(name)(request, timeout=self._timeout_seconds))
        except grpc.aio.AioRpcError as error:
            raise CallError(self.endpoint, RichError.of(cast("FailedCall", error))) from error

    async def stream(self, name: str, request: Message) -> AsyncIterator[Message]:
        """As Calls says."""
        call = self._method(name)(request, timeout=self._timeout_seconds)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise CallError(self.endpoint, RichError.of(cast("FailedCall", error))) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Closes the connection."""
        await self._connection.close(None)

    def _method(self, name: str) -> Any:
        route, admin = self._stubs
        return getattr(route, name, None) or getattr(admin, name)


async def pages(server: Calls, name: str, request: Message) -> AsyncIterator[Message]:
    """All pages of a list; the request's page token is overwritten."""
    while True:
        answer = await server.call(name, request)
        yield answer
        token = answer.next_page_token  # type: ignore[attr-defined]
        if not token:
            return
        request.page_token = token  # type: ignore[attr-defined]
