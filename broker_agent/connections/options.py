"""Options of gRPC for a connection to a name server."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_agent.connections.reopening import ReopeningRules

NO_RETRIES = ("grpc.enable_retries", 0)
"""We retry ourselves, with pauses and bounds. Until gRPC notices that the connection is dead, it repeats a call at once
and without bound, and keeps the memory: a process that had been stopped for longer than a name server waits for its
pings took up to a gigabyte in the next second.
"""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a connection to a name server is made and watched. Times are in milliseconds."""

    connect_timeout_millis: int
    """Time to connect and, for a registration, to wait for the channel."""
    keepalive_time_millis: int
    """Silence after which the name server is pinged."""
    keepalive_timeout_millis: int
    """Time for the answer to a ping."""
    compressed_register: bool = False
    """Whether registrations travel compressed, with gRPC's gzip."""
    reopening: ReopeningRules = field(default_factory=ReopeningRules)
    """When a channel that ended is opened again."""

    def as_grpc(self) -> list[tuple[str, int]]:
        """These as options of gRPC."""
        return [
            NO_RETRIES,
            ("grpc.keepalive_time_ms", self.keepalive_time_millis),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_millis),
            # Without it gRPC takes 60 s more to notice a dead peer, whatever the keepalive timeout.
            ("grpc.http2.ping_timeout_ms", self.keepalive_timeout_millis),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            # In spite of its name this is the time that one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_millis),
            # Below our own backoff, so that each of our attempts really connects and does not repeat gRPC's last
            # failure.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            # A restarted container has a new address; gRPC would ask the DNS again only after 30 s.
            ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        ]
