"""The exporter of metrics and traces to a collector, by OTLP over gRPC. Loaded only where it is switched on.

gRPC and not HTTP, because gRPC is here already. With a collector that is down or slow, telemetry is lost and nothing
else suffers: spans wait in a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE, 2,048), metrics not at all, and both are sent by
threads of their own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL, OTEL_TRACES_SAMPLER
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from groundwork.otlp_metrics import MetricExports
from groundwork.signals import Signals
from groundwork.tracing import CallTraces, TracedCalls

STOP_SECONDS = 3.0
"""How long the last spans and metrics may take to leave at shutdown; then they are given up."""

PROBLEM_LOG_SECONDS = 300.0
"""Time between two log lines of the same kind about a collector that takes nothing."""

DEFAULT_INTERVAL_MILLIS = 60_000.0
"""Time between two messages with metrics if OTEL_METRIC_EXPORT_INTERVAL is not set: the standard's value."""

_SCOPE = "namesrv"
_NOISY_LOGGERS = ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.sdk._shared_internal")


class Telemetry:
    """Exports what the signals name."""

    def __init__(
        self,
        service: str,
        version: str,
        signals: Signals,
        registry: CollectorRegistry,
        *,
        traces_follow_callers: bool,
    ) -> None:
        """Prepares everything; connects to nobody yet.

        Args:
            service: Name of the program, unless a variable says it.
            traces_follow_callers: Whether, without OTEL_TRACES_SAMPLER, only calls whose callers trace them have spans.

        Raises:
            ValueError: A variable holds a value that it cannot have.
        """
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).addFilter(_AtMostEvery(PROBLEM_LOG_SECONDS))
        resource = _resource(service, version)
        self._metrics: MetricExports | None = None
        self._tracers: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._begins_traces = True
        if signals.metrics:
            scope = InstrumentationScope(_SCOPE, version)
            self._metrics = MetricExports(
                OTLPMetricExporter(), registry, resource, scope, interval_seconds=_interval_seconds()
            )
        if signals.traces:
            follows = traces_follow_callers and not os.environ.get(OTEL_TRACES_SAMPLER)
            self._begins_traces = not follows
            self._tracers = TracerProvider(
                ParentBased(ALWAYS_OFF) if follows else None, resource, shutdown_on_exit=False
            )
            self._spans = OTLPSpanExporter()
            self._tracers.add_span_processor(BatchSpanProcessor(self._spans))
            self._tracer = self._tracers.get_tracer(_SCOPE, version)

    @property
    def begins_traces(self) -> bool:
        """Whether calls whose callers name no trace may begin one."""
        return self._tracer is not None and self._begins_traces

    @property
    def call_traces(self) -> CallTraces | None:
        """The observer that gives calls to a server their spans; None if traces are not exported."""
        return None if self._tracer is None else CallTraces(self._tracer, begins_traces=self._begins_traces)

    def traced_calls(self, target: str) -> TracedCalls | None:
        """The interceptors that give calls over one connection their spans; None if traces are not exported."""
        return None if self._tracer is None else TracedCalls(self._tracer, target)

    def start(self) -> None:
        """Starts to send."""
        if self._metrics is not None:
            self._metrics.start()

    def stop(self) -> None:
        """Sends what is left, for STOP_SECONDS at most. Blocks for as long."""
        deadline = time.monotonic() + STOP_SECONDS
        if self._metrics is not None:
            self._metrics.finish()
        if self._tracers is not None:
            # It would wait for half a minute.
            stopping = threading.Thread(target=self._tracers.shutdown, name="otlp-traces-stop", daemon=True)
            stopping.start()
            stopping.join(max(0.0, deadline - time.monotonic()))
            if stopping.is_alive():
                self._spans.shutdown()
        if self._metrics is not None:
            self._metrics.join(max(0.0, deadline - time.monotonic()))


class _AtMostEvery(logging.Filter):
    """Lets one message of a kind pass, and then no more for some time.

    The kind is its text before values are put in.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._monotonic = monotonic
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._monotonic()
        if now - self._passed_at.get(record.msg, float("-inf")) < self._seconds:
            return False
        self._passed_at[record.msg] = now
        return True


def _resource(service: str, version: str) -> Resource:
    """The resource that exports. The variables win."""
    told = OTELResourceDetector().detect().attributes
    own = {
        "service.name": service,
        "service.version": version,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    return Resource.create({key: value for key, value in own.items() if key not in told})


def _interval_seconds() -> float:
    text = os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, "").strip()
    try:
        millis = float(text) if text else DEFAULT_INTERVAL_MILLIS
    except ValueError:
        millis = 0.0
    if not millis >= 1:
        raise ValueError(f"{OTEL_METRIC_EXPORT_INTERVAL} is {text!r}, must be a number of milliseconds, at least 1")
    return millis / 1000
