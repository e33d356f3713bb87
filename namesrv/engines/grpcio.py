"""The gRPC engines: one factory, and nothing else knows which one runs."""

from __future__ import annotations

import grpc

from groundwork.grpcio_server import listener_options
from groundwork.listener_tls import ListenerTls
from groundwork.program import descriptors_of_listener
from namesrv.engines.api import KEEPALIVE_TIMEOUT_SECONDS
from namesrv.limits import (
    MAX_ANSWER_BYTES_WAITING,
    MAX_CALLS_UNDER_WAY,
    MAX_CONCURRENT_STREAMS,
    MAX_CONNECTIONS_PER_SECOND,
    MAX_METADATA_BYTES,
    MAX_PENDING_REQUESTS,
    MAX_PROBES_UNDER_WAY,
    MAX_REFLECTIONS_UNDER_WAY,
    MAX_REGISTRATION_BYTES,
    MAX_REQUEST_BYTES_UNDER_WAY,
)
from namesrv.settings import NamesrvSettings


def build_server(engine: str, settings: NamesrvSettings, tls: ListenerTls | None = None) -> grpc.aio.Server:
    """A server without services and ports."""
    if engine == "native":
        return _native_server(settings, tls)
    options = listener_options(
        max_connections=_connections(settings),
        max_message_bytes=MAX_REGISTRATION_BYTES,  # for all calls; handlers keep the limits of the others
        max_metadata_bytes=MAX_METADATA_BYTES,
        max_concurrent_streams=MAX_CONCURRENT_STREAMS,
        max_pending_requests=MAX_PENDING_REQUESTS,
        keepalive_time_millis=settings.keepalive_time_millis,
        keepalive_timeout_millis=int(KEEPALIVE_TIMEOUT_SECONDS * 1000),
    )
    return grpc.aio.server(options=options)


def _connections(settings: NamesrvSettings) -> int:
    """Most connections of gRPC: as many as there are descriptors for. RocketMQ's protocol has half of them."""
    return min(settings.max_connections, descriptors_of_listener(2 if settings.remoting_listen else 1))


def _native_server(settings: NamesrvSettings, tls: ListenerTls | None) -> grpc.aio.Server:
    from namesrv.engines.api import Options  # noqa: PLC0415 - the package of native may be missing
    from namesrv.engines.native import NativeServer  # noqa: PLC0415

    options = Options(
        threads=settings.engine_threads,
        permits=settings.permits_file is not None,
        cache_bytes=settings.cache_bytes,
        max_metadata=MAX_METADATA_BYTES,
        max_streams=MAX_CONCURRENT_STREAMS,
        max_connections=_connections(settings),
        max_calls=MAX_CALLS_UNDER_WAY,
        max_health_calls=MAX_PROBES_UNDER_WAY,
        max_reflection_calls=MAX_REFLECTIONS_UNDER_WAY,
        max_bytes_in=MAX_REQUEST_BYTES_UNDER_WAY,
        max_waiting=MAX_ANSWER_BYTES_WAITING,
        shares=settings.share_rules,
        max_connection_rate=MAX_CONNECTIONS_PER_SECOND,
        keepalive=settings.keepalive_time_millis / 1000,
        keepalive_timeout=KEEPALIVE_TIMEOUT_SECONDS,
    )
    return NativeServer(options, tls)
