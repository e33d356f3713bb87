"""The client for threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from groundwork.connections.call_errors import CallError
from groundwork.connections.channels import ClientSecurity, open_channel
from groundwork.endpoints import Endpoint
from groundwork.namesrv_client.connection import PLAIN, SERVICES, CallTable, ConnectionSettings, turn_page
from groundwork.rich_errors import FailedCall, RichError

Metadata = tuple[tuple[str, str], ...]


class NamesrvClient:
    """One name server, or an agent. Every call raises CallError where it fails."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        security: ClientSecurity | None = None,
        *,
        settings: ConnectionSettings = PLAIN,
        services: Sequence[ServiceDescriptor] = SERVICES,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
    ) -> None:
        """Connects at the first call.

        Args:
            endpoint: The server.
            timeout_seconds: Time for one call with one answer.
            security: What to show and what to check, from files that are read again; None: no TLS.
            settings: How the connection behaves.
            services: Whose calls can be made.
            credentials: Instead of security: what to show and check, where there are no files.
            metadata: What goes with every call.
        """
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._metadata = metadata
        if credentials is None:
            self._connection = open_channel(endpoint, settings.options, security)
        else:
            self._connection = grpc.secure_channel(str(endpoint), credentials, settings.options)
        self._calls = CallTable(self._connection, services)

    def call(self, name: str, request: Message) -> Message:
        """Makes a unary call of the contract by its name, such as ``GetTopicRoute``."""
        try:
            answer = self._calls.get(name)(request, timeout=self.timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failure(error) from error
        return cast("Message", answer)

    def stream(
        self,
        name: str,
        request: Message,
        timeout_seconds: float | None,
        read: Callable[[bytes], Any] | None = None,
    ) -> Generator[Any, None, None]:
        """Makes a streaming call; yields its answers as they come. Ends the call when it is closed.

        Args:
            name: The call's name.
            request: What is asked.
            timeout_seconds: Time for the whole stream; None: it goes on for as long as it is read.
            read: Makes an answer of its bytes; None: as the contract says.
        """
        call = self._calls.get(name, read)(request, timeout=timeout_seconds, metadata=self._metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._failure(error) from error
        finally:
            call.cancel()

    def pages(self, name: str, request: Message) -> Iterator[Message]:
        """All pages of a list; the request's page token is overwritten."""
        while True:
            answer = self.call(name, request)
            yield answer
            if not turn_page(request, answer):
                return

    def close(self) -> None:
        """Closes the connection and ends its calls."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failure(self, error: grpc.RpcError) -> CallError:
        return CallError(self.endpoint, RichError.of(cast("FailedCall", error)))
