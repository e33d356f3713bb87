"""gRPC connections that follow changed credentials, a check of health over them, and bounds on what answers bring."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, Protocol, Self, cast

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import WatchedFile
from namesrv_common.tls.certificates import (
    CertificateError,
    KeyPair,
    Validity,
    read_authorities,
    read_key_pair,
    read_token,
)

# Connections that are renewed when their credentials change, which gRPC's own cannot do.

Options = Sequence[tuple[str, int | str]]


class Security(Protocol):
    """The credentials of a client, which may change, for any number of connections. Thread-safe."""

    @property
    def options(self) -> Options:
        """Options that a connection needs besides the credentials."""

    def credentials(self) -> tuple[int, grpc.ChannelCredentials]:
        """How often the credentials have changed, and those in force. Takes microseconds."""

    def token(self) -> str | None:
        """The bearer token to send; None sends none."""


class RenewedChannel:
    """What stubs use of a channel, blocking or asyncio, over connections whose credentials may change. Thread-safe.

    A call goes over the connection of the credentials in force when it begins. gRPC closes an outdated connection when
    the last call on it has ended, because nothing else refers to it.
    """

    def __init__(self, connect: Callable[[grpc.ChannelCredentials], Any], security: Security) -> None:
        """Connects for the first time. Takes how a connection with some credentials is made."""
        self._connect = connect
        self._security = security
        self._lock = threading.Lock()
        self._closed = False
        self._generation, credentials = security.credentials()
        self._channel = connect(credentials)

    def close(self, *grace: float | None) -> Any:
        """Closes the connection in force and ends its calls. Await it with asyncio."""
        with self._lock:
            self._closed = True
        return self._channel.close(*grace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_force(self) -> Any:
        generation, credentials = self._security.credentials()
        with self._lock:
            if generation > self._generation and not self._closed:
                self._channel = self._connect(credentials)
                self._generation = generation
            return self._channel

    def _calls(self, kind: str, *args: Any, **options: Any) -> Callable[..., Any]:
        # Registered at the first call over a connection, which ends the process if another thread has closed that.
        options.pop("_registered_method", None)

        def call(*sent: Any, **given: Any) -> Any:
            # With gRPC's call credentials, the close of a connection may wait forever and hold the interpreter's lock
            # (https://github.com/grpc/grpc/pull/42247).
            if token := self._security.token():
                given["metadata"] = (*(given.get("metadata") or ()), ("authorization", f"Bearer {token}"))
            return getattr(self._in_force(), kind)(*args, **options)(*sent, **given)

        return call

    unary_unary: Any = partialmethod(_calls, "unary_unary")
    unary_stream: Any = partialmethod(_calls, "unary_stream")
    stream_stream: Any = partialmethod(_calls, "stream_stream")


# Connections of all clients to gRPC servers, with or without TLS.

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Largest message that is accepted of a server, unpacked, unless the connection's own options say otherwise. A hostile
message takes 26 times its size when it is parsed."""

_COMMON: Options = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # gRPC sends even calls to this machine through http_proxy, which container engines put into every environment.
    ("grpc.enable_http_proxy", 0),
    # A restarted container has a new address; gRPC would ask the DNS again only after 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


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
    """Period of pings while a call is open. None means no pings."""
    keepalive_timeout_seconds: float | None = None
    """Time for the answer to a ping. By default as long as the period."""
    shared: bool = True
    """Whether connections of this process to one name server are one, with one flow control and one backoff."""
    service_config: str | None = None
    """gRPC's service config, such as one with retries. None means no retries: until gRPC notices that a connection is
    dead, it repeats a call at once and without bound, and keeps the memory. A process that had been stopped for longer
    than a name server waits for its pings took up to 1 GB in the next second."""

    @property
    def options(self) -> Options:
        timeout = self.keepalive_timeout_seconds or self.keepalive_seconds
        millis: dict[str, float | None] = {
            # This one is, in spite of its name, the time that one attempt to connect may take.
            "grpc.min_reconnect_backoff_ms": self.connect_seconds,
            "grpc.initial_reconnect_backoff_ms": self.first_backoff_seconds,
            "grpc.max_reconnect_backoff_ms": self.longest_backoff_seconds,
            "grpc.keepalive_time_ms": self.keepalive_seconds,
            "grpc.keepalive_timeout_ms": timeout,
            # Without it gRPC takes 60 s more to notice a dead peer, whatever the keepalive timeout.
            "grpc.http2.ping_timeout_ms": timeout,
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


LOOK_SECONDS = 0.2
"""Longest that a call waits for a look at files: the call of a client's event loop, or with a lock held."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a client shows, and what it checks servers with. All files may be replaced at any time."""

    authorities: Path
    """Certificates that servers' are checked with, PEM."""
    certificate: Path | None = None
    """The client's own certificate, and the intermediate ones that signed it, PEM; None shows none."""
    key: Path | None = None
    """Its private key, PEM, not encrypted."""
    token: Path | None = None
    """A bearer token, in the file's only line; None sends none."""
    server_name: str | None = None
    """Name that servers' certificates must have. By default the host that is called."""

    def __post_init__(self) -> None:
        """Raises CertificateError if there is a certificate without a key, or a key without a certificate."""
        if (self.certificate is None) != (self.key is None):
            raise CertificateError("a certificate needs its key, and a key its certificate")


class ClientSecurity:
    """Credentials of a client, from files, for any number of connections.

    Files that cannot be used change nothing, which one log line says; files on a disk that hangs change nothing either.
    """

    def __init__(self, files: ClientFiles, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Reads the files. Raises CertificateError, with the reason, if they cannot be used."""
        self.files = files
        paths = [path for path in (files.authorities, files.certificate, files.key) if path is not None]
        self._credentials = WatchedFile(
            paths, self._load, on_reloaded=self._reloaded, on_kept=self._kept, monotonic=monotonic
        )
        self._token: WatchedFile[str] | None = None
        if files.token is not None:
            token = files.token
            self._token = WatchedFile([token], lambda: read_token(token), on_kept=self._kept, monotonic=monotonic)

    @property
    def options(self) -> Options:
        name = self.files.server_name
        return () if name is None else (("grpc.ssl_target_name_override", name),)

    @property
    def validity(self) -> Validity | None:
        """When the certificate in force is valid; None if none is shown."""
        pair = self._credentials.value[1]
        return None if pair is None else pair.validity

    def credentials(self) -> tuple[int, grpc.ChannelCredentials]:
        generation, (credentials, _) = self._credentials.refreshed_within(LOOK_SECONDS)
        return generation, credentials

    def token(self) -> str | None:
        return None if self._token is None else self._token.refreshed_within(LOOK_SECONDS)[1]

    def _load(self) -> tuple[grpc.ChannelCredentials, KeyPair | None]:
        files = self.files
        authorities = read_authorities(files.authorities)
        if files.certificate is None or files.key is None:
            return grpc.ssl_channel_credentials(authorities), None
        pair = read_key_pair(files.certificate, files.key)
        return grpc.ssl_channel_credentials(authorities, pair.key, pair.certificate), pair

    def _reloaded(self, _loaded: object) -> None:
        _log.info("the certificates of this client were read again; calls go over new connections now")

    def _kept(self, error: ValueError) -> None:
        _log.error("new certificates or a new token cannot be used, those read before stay: %s", error)


def open_channel(endpoint: Endpoint | str, options: Options = (), security: Security | None = None) -> grpc.Channel:
    """A connection to a server, made at the first call; without security, or over TLS with certificates as they are."""
    return cast("grpc.Channel", _open(grpc, endpoint, options, security))


def open_aio_channel(
    endpoint: Endpoint | str, options: Options = (), security: Security | None = None
) -> grpc.aio.Channel:
    """Like ``open_channel``, for the running event loop. Checking the files takes a few stat calls, once a second."""
    return cast("grpc.aio.Channel", _open(grpc.aio, endpoint, options, security))


def _open(api: Any, endpoint: Endpoint | str, options: Options, security: Security | None) -> Any:
    target, given = str(endpoint), {name for name, _ in options}
    options = (*options, *(option for option in _COMMON if option[0] not in given))
    if security is None:
        return api.insecure_channel(target, options=options)

    options = (*options, *security.options)
    return RenewedChannel(lambda credentials: api.secure_channel(target, credentials, options=options), security)


# A health check of a gRPC server, as a container's HEALTHCHECK runs it.


def check_health(
    endpoint: Endpoint, service: str, timeout_seconds: float, security: Security | None = None
) -> str | None:
    """Asks ``grpc.health.v1`` once. An empty service is the whole server.

    Returns:
        None if the answer is SERVING, otherwise one line that says what it was instead.
    """
    with open_channel(endpoint, (), security) as connection:
        stub = health_pb2_grpc.HealthStub(connection)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # the health service's answer has no text
                return f"{endpoint}: there is no service {service}"
            return f"{endpoint}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{endpoint}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


# Bounds on what a program accepts from a server that it calls: bytes, rows and time, counted while they come.


class ResponseTooLarge(Exception):
    """A server sent more than the program accepts. The text names the limit and the value, not the server."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """The most that one answer may bring, all of its messages together."""

    bytes: int
    """Encoded bytes."""
    rows: int
    """Rows, as the caller counts them."""
    seconds: float = math.inf
    """Time from the first message to the last; infinite where the call has a deadline."""


@dataclass(slots=True)
class ResponseBudget:
    """What one answer of several messages may still bring. The reader of the answer owns it."""

    what: str
    """The name of the answer in the error: "a snapshot"."""
    limits: ResponseLimits
    monotonic: Callable[[], float] = time.monotonic
    bytes: int = 0
    """Bytes that have come."""
    rows: int = 0
    """Rows that have come."""
    _began: float | None = None

    def take(self, encoded_bytes: int, rows: int = 0) -> None:
        """Counts a message. Raises ResponseTooLarge if the answer is over a limit now."""
        now = self.monotonic()
        if self._began is None:
            self._began = now
        self.bytes += encoded_bytes
        self.rows += rows
        counted = (
            ("bytes", self.bytes, self.limits.bytes),
            ("rows", self.rows, self.limits.rows),
            ("seconds", now - self._began, self.limits.seconds),
        )
        for unit, value, limit in counted:
            if value > limit:
                raise ResponseTooLarge(f"{self.what} has {value:,.0f} {unit} so far, over the limit of {limit:,.0f}")

    def begin_anew(self) -> None:
        """Forgets what has come, because nothing of it is held: the next message is the first one again."""
        self._began = None
        self.bytes = self.rows = 0


def rows_in(message: Message) -> int:
    """Returns the number of rows of a message: elements of its lists, and of the lists of the messages within it."""
    rows = 0
    for _, value in message.ListFields():
        match value:
            case Message():
                rows += rows_in(value)
            case str() | bytes() | int() | float():
                pass
            case _:
                rows += len(value)
    return rows
