"""Metrics of gRPC calls (gRFC A66), and the observers that collect them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import grpc
from google.protobuf.message import Message
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


# Observers of the calls that a client makes. Interceptors of gRPC would register each call anew, which ends the process
# if another thread has closed the channel.


class ClientCallObserver(Protocol):
    """Watches the calls of a client."""

    def __call__(self, method: str, metadata: dict[str, str], /, *, streams: bool) -> EndOfCall | None:
        """A call of ``package.Service/Method`` begins; adds metadata to send. Returns what its end is reported to."""


@contextmanager
def observed_call(
    observers: Sequence[ClientCallObserver], request: Message, *, streams: bool = False
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Lets observers watch the call with this request. Yields the metadata to send."""
    (service,) = request.DESCRIPTOR.file.services_by_name.values()  # files of the contract have one service each
    method = f"{service.full_name}/{request.DESCRIPTOR.name.removesuffix('Request')}"
    metadata, code = dict[str, str](), grpc.StatusCode.OK
    ends = [observer(method, metadata, streams=streams) for observer in observers]
    try:
        yield tuple(metadata.items())
    except BaseException as error:
        code = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
        raise
    finally:
        for end in ends:
            if end is not None:
                end(code)


# Metrics of calls, answered and made, by the names and with the labels of gRFC A66.

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


class ClientCallMetrics:
    """Counts and times the calls that a client makes, by target. A call is one attempt: no client here has gRPC retry.

    Thread-safe. The targets must come from a bounded list, and be forgotten when they leave it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        target, status = ["grpc_method", "grpc_target"], ["grpc_method", "grpc_target", "grpc_status"]
        self._started = Counter(
            "grpc_client_attempt_started", "Calls of an agent to a name server.", target, registry=registry
        )
        self._durations = [
            Histogram(f"grpc_client_{name}", text, status, buckets=DURATION_BUCKETS, registry=registry)
            for name, text in (
                ("attempt_duration_seconds", "Time of these calls with the network."),
                ("call_duration_seconds", "The same: no call is retried."),
            )
        ]
        self._targets: set[str] = set()
        """Targets that are not forgotten: the last call to one that left may end later."""

    def forget(self, target: str) -> None:
        """Drops the series of a target that has left the list."""
        self._targets.discard(target)
        for metric in (self._started, *self._durations):
            metric.remove_by_labels({"grpc_target": target})

    def of(self, target: str) -> ClientCallObserver:
        """The observer of the calls to a target."""
        self._targets.add(target)

        def begun(method: str, _metadata: dict[str, str], *, streams: bool) -> EndOfCall:  # noqa: ARG001
            if target in self._targets:
                self._started.labels(method, target).inc()
            started = time.perf_counter()

            def ended(code: grpc.StatusCode) -> None:
                for duration in self._durations if target in self._targets else ():
                    duration.labels(method, target, code.name).observe(time.perf_counter() - started)

            return ended

        return begun
