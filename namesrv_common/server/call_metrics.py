"""Metrics of gRPC calls (gRFC A66), and the observers that collect them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from namesrv_common.grpc_errors import FailedCall

# Observers of the calls that a server answers: metrics and traces, on listeners of any engine.

Metadata = Iterable[tuple[str, str | bytes]]


class MethodObserver(Protocol):
    """Watches one call of the contract. Neither method may block or raise."""

    def started(self, metadata: Callable[[], Metadata | None]) -> Any:
        """A call began, and its caller sent this metadata. Returns what ``ended`` is to be given."""

    def ended(self, code: grpc.StatusCode, started: Any) -> None: ...


class CallObserver(Protocol):
    """Watches the calls of a server."""

    def of(self, method: str, *, streams: bool) -> MethodObserver | None:
        """The observer of one call of the contract, ``package.Service/Method``, or None."""


def observed(
    handle: Callable[[Any, Any], Awaitable[Any]],
    observers: Sequence[CallObserver],
    method: str,
    *,
    streams: bool,
    code_of: Callable[[BaseException | None], grpc.StatusCode],
) -> Callable[[Any, Any], Awaitable[Any]]:
    """An asyncio handler that is watched; the handler itself if nobody watches it.

    Args:
        handle: Answers the call; it ends an unsuccessful one with ``context.abort``.
        code_of: The code that the handler ended a call with because of an error.
    """
    for observer in observers:
        of_method = observer.of(method, streams=streams)
        if of_method is not None:
            handle = _observed_by(handle, of_method, code_of)
    return handle


def _observed_by(
    handle: Callable[[Any, Any], Awaitable[Any]],
    of_method: MethodObserver,
    code_of: Callable[[BaseException | None], grpc.StatusCode],
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def observe(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        started, code = of_method.started(context.invocation_metadata), grpc.StatusCode.UNKNOWN
        answering = handle(request, context)
        del request  # a stream lasts, and does not need its request for as long
        try:
            answer = await answering
            code = grpc.StatusCode.OK
            return answer  # noqa: TRY300 - it is the try that matters
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException as error:
            code = code_of(error.__context__)
            raise
        finally:
            of_method.ended(code, started)

    return observe


# Observers of the calls that a client makes. Interceptors of gRPC would register each call anew, which ends the process
# if another thread has closed the channel.

EndOfCall = Callable[[grpc.StatusCode], None]


class ClientCallObserver(Protocol):
    """Watches the calls of a client."""

    def __call__(self, method: str, metadata: dict[str, str], /, *, streams: bool) -> EndOfCall | None:
        """A call of ``package.Service/Method`` begins; adds metadata to send. Returns what its end is reported to."""


@contextmanager
def observed_call(
    observers: Sequence[ClientCallObserver], request: Message, *, streams: bool = False
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Lets observers watch the call with this request. Yields the metadata to send."""
    method, metadata, code = method_of(request), dict[str, str](), grpc.StatusCode.OK
    ends = [observer(method, metadata, streams=streams) for observer in observers]
    try:
        yield tuple(metadata.items())
    except BaseException as error:
        code = cast("FailedCall", error).code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
        raise
    finally:
        for end in ends:
            if end is not None:
                end(code)


def method_of(request: Message) -> str:
    """``package.Service/Method`` of a request of the contract, whose files have one service each."""
    (service,) = request.DESCRIPTOR.file.services_by_name.values()
    return f"{service.full_name}/{request.DESCRIPTOR.name.removesuffix('Request')}"


# Metrics of calls, answered and made, by the names and with the labels of gRFC A66.

DURATION_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds: the buckets of gRFC A66 that calls of this project reach."""


Elsewhere = Callable[[], Mapping[tuple[str, grpc.StatusCode], tuple[int, float]]]
"""What was answered without a call getting here: by method and code, how many, and the seconds that they took."""


class CallMetrics(Collector):
    """Counts and times the calls that a server answers. Calls that are not in the contract never get here."""

    def __init__(self, registry: CollectorRegistry, elsewhere: Elsewhere = dict) -> None:
        self._started = Counter("grpc_server_call_started", "Calls started.", ["grpc_method"], registry=None)
        self._duration = Histogram(
            "grpc_server_call_duration_seconds",
            "Time in the server; cached answers are in the lowest bucket.",
            ["grpc_method", "grpc_status"],
            buckets=DURATION_BUCKETS,
            registry=None,
        )
        self._elsewhere = elsewhere
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All calls. Calls that were answered elsewhere count in the lowest bucket."""
        answered = self._elsewhere()
        for method, code in answered:  # so that they have samples
            self._started.labels(method)
            self._duration.labels(method, code.name)
        by_labels = {(method, code.name): told for (method, code), told in answered.items()}
        for family in (*self._started.collect(), *self._duration.collect()):
            family.samples = [_with_elsewhere(sample, by_labels) for sample in family.samples]
            yield family

    def of(self, method: str, *, streams: bool) -> MethodMetrics:  # noqa: ARG002 - streams are counted like all others
        return MethodMetrics(
            self._started.labels(method), lambda code: self._duration.labels(method, code.name), time.perf_counter
        )


def _with_elsewhere(sample: Sample, answered: Mapping[tuple[str, str], tuple[int, float]]) -> Sample:
    """A sample of the calls that got here, with those that did not."""
    method, status = sample.labels["grpc_method"], sample.labels.get("grpc_status")
    counts = [
        told for (of_method, of_status), told in answered.items() if of_method == method and status in {None, of_status}
    ]
    if not counts or sample.name.endswith("_created"):
        return sample
    number = 1 if sample.name.endswith("_sum") else 0
    return sample._replace(value=sample.value + sum(told[number] for told in counts))


class MethodMetrics:
    """Counts and times one call of the contract. Children are made once, so that this costs two additions a call."""

    def __init__(
        self, started: Counter, duration: Callable[[grpc.StatusCode], Histogram], clock: Callable[[], float]
    ) -> None:
        self._started = started
        self._duration = duration
        self._clock = clock
        self._ended: dict[grpc.StatusCode, Histogram] = {}

    def started(self, metadata: Callable[[], Metadata | None]) -> float:  # noqa: ARG002
        self._started.inc()
        return self._clock()

    def ended(self, code: grpc.StatusCode, started: float) -> None:
        child = self._ended.get(code)
        if child is None:
            child = self._ended[code] = self._duration(code)
        child.observe(self._clock() - started)


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

    def began(self, method: str, target: str) -> None:
        if target in self._targets:
            self._started.labels(method, target).inc()

    def ended(self, method: str, target: str, code: grpc.StatusCode, seconds: float) -> None:
        for duration in self._durations if target in self._targets else ():
            duration.labels(method, target, code.name).observe(seconds)

    def forget(self, target: str) -> None:
        """Drops the series of a target that has left the list."""
        self._targets.discard(target)
        for metric in (self._started, *self._durations):
            metric.remove_by_labels({"grpc_target": target})

    def of(self, target: str) -> ClientCallObserver:
        """The observer of the calls to a target."""
        self._targets.add(target)

        def begun(method: str, _metadata: dict[str, str], *, streams: bool) -> EndOfCall:  # noqa: ARG001
            self.began(method, target)
            started = time.perf_counter()
            return lambda code: self.ended(method, target, code, time.perf_counter() - started)

        return begun
