"""The client for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from groundwork.connections.call_errors import CallError
from groundwork.connections.channels import ClientSecurity, open_aio_channel
from groundwork.endpoints import Endpoint
from groundwork.namesrv_client.connection import PLAIN, SERVICES, CallTable, ConnectionSettings, turn_page
from groundwork.rich_errors import FailedCall, RichError


class Calls(Protocol):
    """What callers need of a name server. All calls raise CallError."""

    @property
    def endpoint(self) -> Endpoint:
        """Its address."""

    async def call(self, name: str, request: Message) -> Message:
        """Makes a unary call of the contract by its name, such as ``GetTopicRoute``."""

    def stream(self, name: str, request: Message) -> AsyncIterator[Message]:
        """Makes a streaming call that must end in time; yields its answers as they come."""


class AioNamesrvClient:
    """One name server. Every call raises CallError where it fails. Belongs to the event loop that it was made in."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        security: ClientSecurity | None = None,
        *,
        settings: ConnectionSettings = PLAIN,
        services: Sequence[ServiceDescriptor] = SERVICES,
    ) -> None:
        """As ``NamesrvClient``."""
        self.endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._connection = open_aio_channel(endpoint, settings.options, security)
        self._calls = CallTable(self._connection, services)

    async def call(self, name: str, request: Message) -> Message:
        """Makes a unary call of the contract by its name, such as ``GetTopicRoute``."""
        with self._failures():
            return self._readable(await self._calls.get(name)(request, timeout=self._timeout_seconds))

    def stream(self, name: str, request: Message) -> AsyncGenerator[Message, None]:
        """Makes a streaming call that must end within the time for a call; yields its answers as they come."""
        return self._messages(name, request, self._timeout_seconds)

    def endless_stream(self, name: str, request: Message) -> AsyncGenerator[Message, None]:
        """Makes a streaming call without a deadline: pings of the connection notice a name server that is gone."""
        return self._messages(name, request, None)

    async def close(self, grace_seconds: float | None = None) -> None:
        """Closes the connection, after its calls or after a time at most."""
        await self._connection.close(grace_seconds)

    async def _messages(
        self, name: str, request: Message, timeout_seconds: float | None
    ) -> AsyncGenerator[Message, None]:
        call: grpc.aio.UnaryStreamCall[Message, Message] = self._calls.get(name)(request, timeout=timeout_seconds)
        try:
            with self._failures():
                async for message in call:
                    yield self._readable(message)
        finally:
            call.cancel()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise CallError(self.endpoint, RichError.of(cast("FailedCall", error))) from error
        except asyncio.CancelledError:
            # gRPC reports a call that ended as CANCELLED as if the task were cancelled. Taken for that, it would end
            # whoever called, without a word.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failure(grpc.StatusCode.CANCELLED, "the call was cancelled") from None

    def _readable(self, answer: Message | None) -> Message:
        if answer is None:  # this is what gRPC makes of bytes that cannot be parsed
            raise self._failure(grpc.StatusCode.INTERNAL, "sent what is not a message of the contract")
        return answer

    def _failure(self, code: grpc.StatusCode, message: str) -> CallError:
        return CallError(self.endpoint, RichError(code, message))


async def pages(server: Calls, name: str, request: Message) -> AsyncIterator[Message]:
    """All pages of a list; the request's page token is overwritten."""
    while True:
        answer = await server.call(name, request)
        yield answer
        if not turn_page(request, answer):
            return
