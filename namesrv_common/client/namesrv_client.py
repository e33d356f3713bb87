"""A client of name servers for threads: calls by name, pages of lists, and streams within bounds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from namesrv_api.v1 import admin_service_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv_common.client.channels import ClientSecurity, Options, open_channel, with_common
from namesrv_common.client.intake import Intake, IntakeLimits, TooMuchSent, rows_in
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, FailedCall, RichError

SERVICES: tuple[ServiceDescriptor, ...] = (
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    diagnostics_service_pb2.DESCRIPTOR.services_by_name["DiagnosticsService"],
)
"""What programs that read and administer call of a name server."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How a connection behaves. Times are in seconds; None leaves one to gRPC."""

    connect_seconds: float | None = None
    """Longest time of one attempt to connect."""
    first_backoff_seconds: float | None = None
    """Pause after the first attempt that failed."""
    longest_backoff_seconds: float | None = None
    """Longest pause between two attempts; gRPC's own is two minutes."""
    keepalive_seconds: float | None = None
    """Period of pings while a call is open, and the time for an answer. None means no pings."""
    shared: bool = True
    """Whether connections of this process to one name server are one, with one flow control and one backoff."""
    service_config: str | None = None
    """gRPC's service config, such as one with retries. None means no retries."""

    @property
    def options(self) -> Options:
        millis: dict[str, float | None] = {
            # This one is, in spite of its name, the time that one attempt to connect may take.
            "grpc.min_reconnect_backoff_ms": self.connect_seconds,
            "grpc.initial_reconnect_backoff_ms": self.first_backoff_seconds,
            "grpc.max_reconnect_backoff_ms": self.longest_backoff_seconds,
            "grpc.keepalive_time_ms": self.keepalive_seconds,
            "grpc.keepalive_timeout_ms": self.keepalive_seconds,
            # Without it gRPC takes 60 s more to notice a dead peer, whatever the keepalive timeout.
            "grpc.http2.ping_timeout_ms": self.keepalive_seconds,
        }
        options: list[tuple[str, int | str]] = [
            (name, int(seconds * 1000)) for name, seconds in millis.items() if seconds is not None
        ]
        if self.keepalive_seconds is not None:
            options.append(("grpc.http2.max_pings_without_data", 0))
        if not self.shared:
            options.append(("grpc.use_local_subchannel_pool", 1))
        if self.service_config is None:
            options.append(("grpc.enable_retries", 0))
        else:
            options.append(("grpc.service_config", self.service_config))
        return options


PLAIN = ConnectionSettings()
"""For a call now and then: all is left to gRPC."""

STREAM_LIMITS = IntakeLimits(bytes=2 << 30, rows=4_000_000)
"""The most that a stream with a deadline may bring. Each topic is a row. 1,000,000 topics on ten groups each have 450
MB. The reader of a stream without a deadline bounds it."""

LIST_LIMITS = IntakeLimits(bytes=512 << 20, rows=4_000_000, seconds=600.0)
"""The most that all pages of a list may bring: the names of 1,000,000 topics have at most 260 MB, in 1,000 pages."""

MAX_PAGES = 20_000
"""Most pages of a list: each may be empty, and name a next one."""

MAX_BROKERS = 200_000
"""Most brokers, or groups, that are kept of one name server, which accepts 50,000. Each takes 1 kB."""


def check_count(endpoint: Endpoint, what: str, count: int, limit: int) -> None:
    """Checks how much a name server has sent. Raises CallError if that is over the limit."""
    if count > limit:
        raise _too_much(endpoint, f"{count:,} {what} so far, over the limit of {limit:,}")


@contextmanager
def _bounds(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except TooMuchSent as error:
        raise _too_much(endpoint, str(error)) from error


def _too_much(endpoint: Endpoint, problem: str) -> CallError:
    # The code of a server that breaks the contract: another one is asked.
    return CallError(endpoint, RichError(grpc.StatusCode.INTERNAL, f"sends too much: {problem}"))


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
            timeout_seconds: Time for one call with one answer.
            security: Certificates and authorities, from files that are read again. None means no TLS.
            credentials: Instead of security: what to show and check, where there are no files.
        """
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._metadata = metadata
        if credentials is None:
            self._connection = open_channel(endpoint, settings.options, security)
        else:
            self._connection = grpc.secure_channel(str(endpoint), credentials, with_common(settings.options))
        self._methods = {method.name: method for service in services for method in service.methods}
        self._calls: dict[tuple[str, object], Any] = {}

    def call(self, name: str, request: Message) -> Message:
        try:
            answer = self._made(name)(request, timeout=self.timeout_seconds, metadata=self._metadata)
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
            timeout_seconds: Time for the whole stream. None means no limit.
            read: Parses a response. By default as the contract says.
        """
        call = self._made(name, read)(request, timeout=timeout_seconds, metadata=self._metadata)
        intake = None if timeout_seconds is None else Intake(name, STREAM_LIMITS)
        try:
            for encoded_bytes, answer in call:
                if intake is not None:
                    with _bounds(self.endpoint):
                        intake.take(encoded_bytes, rows_in(answer) if isinstance(answer, Message) else 0)
                yield answer
        except grpc.RpcError as error:
            raise self._failure(error) from error
        finally:
            call.cancel()

    def pages(self, name: str, request: Message) -> Iterator[Message]:
        """All pages of a list; the request's page token is overwritten."""
        intake, count = Intake(name, LIST_LIMITS), 0
        while True:
            answer: Any = self.call(name, request)
            count += 1
            check_count(self.endpoint, f"pages of {name}", count, MAX_PAGES)
            with _bounds(self.endpoint):
                intake.take(answer.ByteSize(), rows_in(answer))
            yield answer
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token  # type: ignore[attr-defined]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _made(self, name: str, read: Callable[[bytes], Any] | None = None) -> Any:
        """What makes a call of the contract. Each answer of a stream comes with its encoded size."""
        key = (name, read)
        if key not in self._calls:
            method = self._methods[name]
            path = f"/{method.containing_service.full_name}/{name}"
            parse = read or GetMessageClass(method.output_type).FromString
            if method.server_streaming:
                self._calls[key] = self._connection.unary_stream(
                    path, _encoded, lambda encoded: (len(encoded), parse(encoded))
                )
            else:
                self._calls[key] = self._connection.unary_unary(path, _encoded, parse)
        return self._calls[key]

    def _failure(self, error: grpc.RpcError) -> CallError:
        return CallError(self.endpoint, RichError.of(cast("FailedCall", error)))


def _encoded(request: Message) -> bytes:
    return request.SerializeToString()
