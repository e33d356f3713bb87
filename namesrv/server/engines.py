"""The gRPC engines: one factory, and nothing else knows which one runs."""

from __future__ import annotations

import grpc

from groundwork.tls import ListenerTls
from namesrv.server.limits import (
    MAX_ANSWER_BYTES_WAITING,
    MAX_CALLS_UNDER_WAY,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    MAX_REQUEST_BYTES_UNDER_WAY,
)
from namesrv.settings import NamesrvSettings

PROMPT_STREAMS = frozenset({"/namesrv_api.v1.RegistrationService/OpenChannel"})
"""Streams whose end means something by itself. An engine that has to look for ends looks for theirs often."""


def build_server(
    engine: str, settings: NamesrvSettings, tls: ListenerTls | None = None, *, shares_port: bool = False
) -> grpc.aio.Server:
    """A server without services and ports.

    Args:
        engine: The engine that was chosen.
        settings: Its bounds.
        tls: The listener's certificates; None: no TLS.
        shares_port: Whether other processes of this name server listen on the same port.

    Raises:
        NotInEnvoy: The engine is envoy, and this process is none.
    """
    if engine == "envoy":
        from namesrv.server.envoy.engine import EnvoyServer  # noqa: PLC0415 - its packages may be missing
        from namesrv.server.envoy.inside import current  # noqa: PLC0415

        return EnvoyServer(current(), PROMPT_STREAMS, tls)
    options = _options(settings, shares_port=shares_port)
    if engine == "native":
        return _native_server(settings, tls, shares_port=shares_port)
    return grpc.aio.server(options=options)


def _native_server(settings: NamesrvSettings, tls: ListenerTls | None, *, shares_port: bool) -> grpc.aio.Server:
    from namesrv.server.native.server import NativeServer, Options  # noqa: PLC0415 - its package may be missing

    options = Options(
        threads=settings.engine_threads,
        permits=settings.permits_file is not None,
        cache_bytes=settings.cache_bytes,
        max_message=MAX_MESSAGE_BYTES,
        max_metadata=MAX_METADATA_BYTES,
        max_streams=settings.max_concurrent_streams,
        max_connections=settings.max_connections,
        max_pending=MAX_CALLS_UNDER_WAY,
        max_assembling=MAX_REQUEST_BYTES_UNDER_WAY,
        max_waiting=MAX_ANSWER_BYTES_WAITING,
        max_connection_rate=settings.max_connections_per_second,
        keepalive=settings.keepalive_time_millis / 1000,
        keepalive_timeout=settings.keepalive_timeout_millis / 1000,
        max_connection_age=settings.max_connection_age_millis / 1000,
    )
    return NativeServer(options, PROMPT_STREAMS, tls, shares_port=shares_port)


def worker_server(target: str) -> grpc.aio.Server:
    """The server on which the owner of the tables listens for its workers, whatever the engine for everybody else."""
    unbounded = [("grpc.max_receive_message_length", -1), ("grpc.max_concurrent_streams", 1 << 20)]
    server = grpc.aio.server(options=unbounded)
    server.add_insecure_port(target)
    return server


def _options(settings: NamesrvSettings, *, shares_port: bool = False) -> list[tuple[str, int]]:
    """Options for both engines; each passes over what it does not know."""
    keepalive, timeout = settings.keepalive_time_millis, settings.keepalive_timeout_millis
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Between the two, grpcio refuses calls at random: metadata of one size would be taken once and refused once.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # Below the number of calls that come at once after a restart, grpcio answers CANCELLED to the rest.
        ("grpc.server.max_pending_requests", settings.max_pending_requests),
        ("grpc.server.max_pending_requests_hard_limit", settings.max_pending_requests),
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", timeout),
        # grpcio takes a dead peer's time from here and not from keepalive_timeout_ms; its default is a minute.
        ("grpc.http2.ping_timeout_ms", timeout),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping as often as we do; a little below, for their clocks.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", keepalive * 4 // 5),
        ("grpc.http2.min_ping_interval_without_data_ms", keepalive * 4 // 5),
        # Otherwise a second server could take the same port silently.
        ("grpc.so_reuseport", int(shares_port)),
    ]
