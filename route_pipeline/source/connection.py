"""Connections to name servers, and their failures as one line each.

Nothing here knows Spark: this runs in a Spark task as well as in any Python program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import grpc
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.endpoints import Endpoint
from groundwork.rich_errors import FailedCall, RichError
from route_pipeline.source.call_hints import hint_of

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message that is accepted. A name server keeps its chunks below 1 MB; the rest is room for others'."""

_MAX_ERROR_LENGTH = 400
_KEEPALIVE_MILLIS = 10_000
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a name server, in seconds."""

    connect: float = 5.0
    """For one attempt to connect; a name server is a network hop away."""
    total: float = 300.0
    """For a whole stream, with what the reader does in between; ten million rows take less than a minute."""

    @property
    def call(self) -> float:
        """For a small call: a few attempts to connect, and the pauses between them."""
        return min(self.total, 10 + 4 * self.connect)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to prove the name server, and oneself to it."""

    ca: bytes | None = None
    """PEM certificates to trust; None: those of the machine."""
    certificate: bytes | None = None
    """PEM certificate chain of this client; None: it has none."""
    key: bytes | None = field(default=None, repr=False)
    """PEM private key of it."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """How to connect to every name server of a read. Travels to Spark's executors, certificates and all."""

    timeouts: Timeouts = Timeouts()
    tls: Tls | None = None
    """None: plain text."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` with each call; None: nothing is sent."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


class Connection:
    """A connection to one name server."""

    def __init__(self, endpoint: Endpoint, connecting: Connecting, channel: grpc.Channel) -> None:
        self.endpoint = endpoint
        self.timeouts = connecting.timeouts
        self.metadata = connecting.metadata
        self.channel = channel
        self.stub = RouteServiceStub(channel)
        self._tls = connecting.tls is not None

    @contextmanager
    def failures(self, seconds: float, hints: Mapping[str, str] | None = None) -> Iterator[None]:
        """Turns a failed call into our error.

        Args:
            seconds: The deadline of the call.
            hints: What the user can do, by reason of the contract.

        Raises:
            NamesrvError: A call in the block failed.
        """
        try:
            yield
        except grpc.RpcError as error:
            cause = RichError.of(cast("FailedCall", error))
            # Texts of gRPC can have several lines, and the text of a server anything.
            text = " ".join(str(cause).split())[:_MAX_ERROR_LENGTH]
            if cause.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                text += f" (it took longer than {seconds:g} s)"
            if hint := hint_of(cause, tls=self._tls, of_call=hints or {}):
                text += f"; {hint}"
            raise NamesrvError(f"name server {self.endpoint}: {text}", cause) from error

    def error(self, problem: str) -> NamesrvError:
        """An error for something that this name server sent."""
        return NamesrvError(f"name server {self.endpoint} {problem}")


@contextmanager
def connect(endpoint: Endpoint, connecting: Connecting) -> Iterator[Connection]:
    """Connects to a name server at the first call; the connection is closed when the block is left."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.service_config", json.dumps(_RETRY_UNAVAILABLE)),
        # gRPC's name for the longest time that an attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(connecting.timeouts.connect * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A name server that was stopped or cut off is noticed long before the total time is over.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MILLIS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MILLIS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MILLIS),
    ]
    with _channel(endpoint, connecting.tls, options) as channel:
        yield Connection(endpoint, connecting, channel)


def _channel(endpoint: Endpoint, tls: Tls | None, options: list[tuple[str, int | str]]) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(str(endpoint), options=options)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.secure_channel(str(endpoint), credentials, options=options)
