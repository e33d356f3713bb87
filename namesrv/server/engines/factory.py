"""The gRPC engines: one factory, and nothing else knows which one runs."""

from __future__ import annotations

import grpc

from groundwork.connections.listener_tls import ListenerTls
from namesrv.config.limits import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from namesrv.config.settings import NamesrvSettings

PROMPT_STREAMS = frozenset({"/namesrv_api.v1.RegistrationService/OpenChannel"})
"""Streams whose end means something by itself. An engine that has to look for ends looks for theirs often."""


def build_server(
    settings: NamesrvSettings, tls: ListenerTls | None = None, *, shares_port: bool = False
) -> grpc.aio.Server:
    """A server without services and ports, of the engine that the settings name.

    Args:
        settings: Which engine, and its bounds.
        tls: The listener's certificates; None: no TLS.
        shares_port: Whether other processes of this name server listen on the same port.

    Raises:
        NotInEnvoy: The engine is envoy, and this process is none.
    """
    if settings.engine == "envoy":
        from namesrv.server.engines.envoy.engine import EnvoyServer  # noqa: PLC0415 - its packages may be missing
        from namesrv.server.engines.envoy.inside import current  # noqa: PLC0415

        return EnvoyServer(current(), PROMPT_STREAMS, tls)
    options = _options(settings, shares_port=shares_port)
    if settings.engine == "native":
        from namesrv.server.engines.native import NativeServer  # noqa: PLC0415 - loads a binary that grpcio does without

        return NativeServer(options=options)
    return grpc.aio.server(options=options)


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
