"""The status of a client, for operators' eyes and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from groundwork.endpoints import Endpoint
from route_client.routes.cache import Counters


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A client at one moment."""

    mode: str
    """``watch``, ``poll`` or ``disconnected``."""
    endpoint: Endpoint | None
    """The name server that keeps its routes up to date."""
    last_error: str
    """The last failure of a name server; empty if there was none."""
    sessions: int
    """How often it has chosen a name server."""
    topics: int
    """Topics that it keeps."""
    held_topics: tuple[str, ...]
    """Topics whose loss of all brokers is held back. Alert somebody when there are any."""
    counters: Counters
    """What happened to answers so far."""
    callback_failures: int
    """Calls of callbacks that raised."""
    cache_files_refused: int
    """Files of the disk cache that could not be trusted."""
    cache_writes_failed: int
    """Files of the disk cache that could not be written."""
