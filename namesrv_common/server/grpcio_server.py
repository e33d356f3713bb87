"""Listeners: a check of the address before the program listens, and the bounds that gRPC keeps."""

from __future__ import annotations

import socket

from namesrv_common.endpoints import Endpoint

MIN_PING_INTERVAL_MILLIS = 800
"""Clients may ping once a second, as programs in Go and Java are set to do, and as often as the server pings them. The
interval is a fifth shorter, for their clocks."""


def check_bindable(listen: Endpoint) -> None:
    """Binds once without gRPC, because its engines write lines of their own and do not say what is wrong.

    Raises:
        OSError: The port is in use, or the address is not this machine's; the text says which.
    """
    bound_socket(listen).close()


def bound_socket(listen: Endpoint) -> socket.socket:
    """A socket that listens. Raises OSError as ``check_bindable`` does."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server(listen, family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise OSError(f"cannot listen on {listen}: {reason}") from error


def listener_options(
    *,
    max_connections: int,
    max_message_bytes: int,
    max_metadata_bytes: int,
    max_concurrent_streams: int,
    max_pending_requests: int,
    keepalive_time_millis: int,
    keepalive_timeout_millis: int,
) -> list[tuple[str, int]]:
    """Options of gRPC for a listener; an engine ignores those that it does not know.

    Args:
        max_connections: Most connections; gRPC closes the others at once. Without a bound they take all descriptors.
        max_pending_requests: Most calls that wait to be taken. Below the number that come at once after a restart,
            gRPC answers CANCELLED to the rest.
    """
    ping_interval = min(keepalive_time_millis * 4 // 5, MIN_PING_INTERVAL_MILLIS)
    return [
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_receive_message_length", max_message_bytes),
        # Between the two limits gRPC refuses calls at random: the same metadata would now be taken and now be refused.
        ("grpc.max_metadata_size", max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", max_metadata_bytes),
        ("grpc.max_concurrent_streams", max_concurrent_streams),
        ("grpc.server.max_pending_requests", max_pending_requests),
        ("grpc.server.max_pending_requests_hard_limit", max_pending_requests),
        ("grpc.keepalive_time_ms", keepalive_time_millis),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_millis),
        # gRPC takes a dead peer's time from here and not from keepalive_timeout_ms; its default is a minute.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_millis),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", ping_interval),
        ("grpc.http2.min_ping_interval_without_data_ms", ping_interval),
        # By default gRPC shares the port, silently, with another server of this user, which gets half of the calls.
        ("grpc.so_reuseport", 0),
    ]
