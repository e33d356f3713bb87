"""How the native engine is to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine is to be; see ``engine/src/limits.rs`` for what each bound prevents."""

    threads: int
    permits: bool
    cache_bytes: int
    max_message: int
    max_metadata: int
    max_streams: int
    max_connections: int
    max_connections_of_address: int
    kept_connections: int
    max_pending: int
    max_assembling: int
    max_waiting: int
    max_connection_rate: int
    keepalive: float
    keepalive_timeout: float
    handshake_timeout: float = 10.0
    body_timeout: float = 20.0
    linger: float = 5.0
    max_connection_age: float = 0.0

    @property
    def max_cancels(self) -> int:
        """Two full sets of calls may be cancelled within a keepalive time."""
        return 2 * self.max_streams
