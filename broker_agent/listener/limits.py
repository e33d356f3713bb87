"""Limits on what operators and other agents may send to the fast listener and hold there."""

from __future__ import annotations

MAX_CONNECTIONS = 2_000
"""Most connections, or half of the file descriptors less 256: operators and slaves, each for a while."""

MAX_MESSAGE_BYTES = 1024 * 1024
"""Largest request: a topic with its attributes is far below."""

MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of a request: it is in memory before anything else of a call is known."""

MAX_CONCURRENT_STREAMS = 100
"""Most calls open on one connection."""

MAX_PENDING_REQUESTS = 10_000
"""Most calls that wait to be taken."""

MAX_WAITING_CALLS = 10_000
"""Calls that come in, wait for a thread or are worked on; more are refused with RESOURCE_EXHAUSTED."""

KEEPALIVE_SECONDS = 20.0
"""Silence after which a peer is pinged, and the time for its answer."""

MAX_CONNECTION_AGE_SECONDS = 120.0
"""After which a connection is told to go: gRPC bounds the time of a request that never ends in no other way."""

CONNECTION_AGE_GRACE_SECONDS = 30.0
"""Time that the calls of such a connection get; then they are cut."""
