"""Metrics of gRPC calls (gRFC A66), and the observers that collect them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

# Observers of the calls that a server answers: metrics and traces, on listeners of any engine.

Metadata = Iterable[tuple[str, str | bytes]]

EndOfCall = Callable[[grpc.StatusCode], None]
"""Is told the code that a call ended with. Neither blocks nor raises."""

BeginOfCall = Callable[[Callable[[], Metadata | None]], EndOfCall | None]
"""Is told that a call began, and its metadata. Returns what its end is reported to. Neither blocks nor raises."""


class CallObserver(Protocol):
    """Watches the calls of a server."""

    def of(self, method: str, *, streams: bool) -> BeginOfCall | None:
        """What each call of a method of the contract, ``package.Service/Method``, is reported to, or None."""


# Metrics of calls, by the names and with the labels of gRFC A66.

DURATION_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds: the buckets of gRFC A66 that calls of this project reach."""


class CallMetrics:
    """Counts and times the calls that a server answers. Calls that are not in the contract never get here."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.started = Counter("grpc_server_call_started", "Calls started.", ["grpc_method"], registry=registry)
        self.duration = Histogram(
            "grpc_server_call_duration_seconds",
            "Time in the server; cached answers are in the lowest bucket.",
            ["grpc_method", "grpc_status"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )

    def of(self, method: str, *, streams: bool) -> BeginOfCall:  # noqa: ARG002 - streams are counted like all others
        """Counts and times the calls of a method. Children are made once, so that this costs two additions a call."""
        started = self.started.labels(method)
        duration_of = cache(lambda code: self.duration.labels(method, code.name))

        def begun(_metadata: Callable[[], Metadata | None]) -> EndOfCall:
            started.inc()
            began = time.perf_counter()
            return lambda code: duration_of(code).observe(time.perf_counter() - began)

        return begun
