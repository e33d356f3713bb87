"""Connections to name servers, and their failures as one line each.

Nothing here knows Spark: this runs in a Spark task as well as in any Python program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from groundwork.namesrv_client import ConnectionSettings, NamesrvClient
from route_pipeline.source.name_server.connecting import Connecting
from route_pipeline.source.name_server.hints import hint_of

_MAX_ERROR_LENGTH = 400
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_RETRY_UNAVAILABLE = {
    "methodConfig": [
        {
            "name": [{"service": "namesrv_api.v1.RouteService"}],
            # gRPC repeats a call only until the first message has come: rows that are out are never read again.
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.2s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class NamesrvError(Exception):
    """A name server could not be read. The text is one line and names the endpoint and the cause."""

    def __init__(self, text: str, cause: RichError | None = None) -> None:
        super().__init__(text)
        self.reason = cause.reason if cause else ""
        """The contract's reason, such as SNAPSHOT_GONE; empty if the name server sent none."""
        self.lost = cause is not None and cause.code in _LOST
        """True if the name server did not answer at all, and may answer later."""


class Connection:
    """A connection to one name server."""

    def __init__(self, connecting: Connecting, client: NamesrvClient) -> None:
        self._client = client
        self._tls = connecting.tls is not None
        self._total_seconds = connecting.timeouts.total

    def call(self, name: str, request: Message, hints: Mapping[str, str] | None = None) -> Message:
        """The answer of a small call of RouteService.

        Args:
            name: The call's name.
            request: What is asked.
            hints: What the user can do, by reason of the contract.

        Raises:
            NamesrvError: It failed.
        """
        with self._failures(self._client.timeout_seconds, hints or {}):
            return self._client.call(name, request)

    def stream(
        self, name: str, request: Message, hints: Mapping[str, str], read: Callable[[bytes], Any] | None = None
    ) -> Iterator[Any]:
        """The messages of a streaming call, which has the whole time that there is.

        Args:
            name: The call's name.
            request: What is asked.
            hints: What the user can do, by reason of the contract.
            read: Makes a message of its bytes; None: as the contract says.

        Raises:
            NamesrvError: It failed.
        """
        with self._failures(self._total_seconds, hints):
            yield from self._client.stream(name, request, self._total_seconds, read)

    def error(self, problem: str) -> NamesrvError:
        """An error for something that this name server sent."""
        return NamesrvError(f"name server {self._client.endpoint} {problem}")

    @contextmanager
    def _failures(self, seconds: float, hints: Mapping[str, str]) -> Iterator[None]:
        """Turns a failed call into our error."""
        try:
            yield
        except CallError as error:
            cause = error.error
            # Texts of gRPC can have several lines, and the text of a server anything.
            text = " ".join(str(cause).split())[:_MAX_ERROR_LENGTH]
            if cause.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                text += f" (it took longer than {seconds:g} s)"
            if hint := hint_of(cause, tls=self._tls, of_call=hints):
                text += f"; {hint}"
            raise NamesrvError(f"name server {error.endpoint}: {text}", cause) from error


@contextmanager
def connect(endpoint: Endpoint, connecting: Connecting) -> Iterator[Connection]:
    """Connects to a name server at the first call; the connection is closed when the block is left."""
    timeouts, tls = connecting.timeouts, connecting.tls
    settings = ConnectionSettings(
        connect_seconds=timeouts.connect,
        first_backoff_seconds=0.2,
        longest_backoff_seconds=2.0,
        keepalive_seconds=10.0,  # who was stopped or cut off is noticed long before the total time is over
        service_config=json.dumps(_RETRY_UNAVAILABLE),
    )
    credentials = None if tls is None else grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    with NamesrvClient(
        endpoint, timeouts.call, settings=settings, credentials=credentials, metadata=connecting.metadata
    ) as client:
        yield Connection(connecting, client)
