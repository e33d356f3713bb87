"""Spans of calls, answered and made, and their export to a collector. Loaded only where traces are exported.

Streams have no spans: they are open for days. Attributes are the method, the code and the target. Topics and brokers
are left out. Spans are exported by OTLP over gRPC, because gRPC is here already. They wait in a bounded queue
(OTEL_BSP_MAX_QUEUE_SIZE, 2,048) for a thread of their own, so a collector that is down or slow only loses spans.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

import grpc
import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from namesrv_common.server.call_metrics import BeginOfCall, EndOfCall, Metadata

_CONTEXT_KEYS = frozenset({"traceparent", "tracestate"})
_PROPAGATOR = TraceContextTextMapPropagator()
_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Codes that mark a server's span as an error, by OpenTelemetry's conventions for gRPC."""


def _attributes(method: str) -> dict[str, str]:
    return {"rpc.system.name": "grpc", "rpc.method": method}


def _end(span: Span, code: grpc.StatusCode, *, is_error: bool) -> None:
    span.set_attribute("rpc.response.status_code", code.name)
    if is_error:
        span.set_attribute("error.type", code.name)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


# The export of spans to a collector.

STOP_SECONDS = 3.0
"""How long the last spans may take to leave at shutdown; then they are given up."""

PROBLEM_LOG_SECONDS = 300.0
"""Time between two log lines of the same kind about a collector that takes nothing."""

_SCOPE = "namesrv"
_NOISY_LOGGERS = ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.sdk._shared_internal")


class Telemetry:
    """The exporter of a program's spans, and the observer of the calls that it answers and makes."""

    def __init__(self, service: str, version: str, *, traces_follow_callers: bool) -> None:
        """Prepares everything; connects to nobody yet. Raises ValueError if a variable has no possible value."""
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).addFilter(_at_most_every(PROBLEM_LOG_SECONDS))
        follows = traces_follow_callers and not os.environ.get(OTEL_TRACES_SAMPLER)
        self.begins_traces = not follows
        """Whether calls whose callers name no trace may begin one."""
        self._tracers = TracerProvider(
            ParentBased(ALWAYS_OFF) if follows else None, _resource(service, version), shutdown_on_exit=False
        )
        self._spans = OTLPSpanExporter()
        self._tracers.add_span_processor(BatchSpanProcessor(self._spans))
        self._tracer = self._tracers.get_tracer(_SCOPE, version)

    def of(self, method: str, *, streams: bool) -> BeginOfCall | None:
        """Gives each sampled call of a method a span in its caller's trace, and its log lines the trace's id.

        Streams have none. Without ``begins_traces``, only calls of traced callers have spans.
        """
        attributes = _attributes(method)

        def begun(metadata: Callable[[], Metadata | None]) -> EndOfCall | None:
            carrier = {key: str(value) for key, value in metadata() or () if key in _CONTEXT_KEYS}
            if not carrier and not self.begins_traces:  # most calls: the sampler would say no, and take its time
                return None
            context = _PROPAGATOR.extract(carrier)
            span = self._tracer.start_span(method, context, SpanKind.SERVER, attributes)
            if not span.is_recording():
                return None
            trace_id = format_trace_id(span.get_span_context().trace_id)
            logged = structlog.contextvars.bind_contextvars(trace_id=trace_id)

            def ended(code: grpc.StatusCode) -> None:
                structlog.contextvars.reset_contextvars(**logged)
                _end(span, code, is_error=code in _SERVER_FAULTS)

            return ended

        return None if streams else begun

    def sent(self, method: str, target: str, metadata: dict[str, str]) -> EndOfCall:
        """Gives a call to a server a span, and adds its id to the metadata to send."""
        attributes = {**_attributes(method), "server.address": target}
        span = self._tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes)
        _PROPAGATOR.inject(metadata, set_span_in_context(span))
        return lambda code: _end(span, code, is_error=code is not grpc.StatusCode.OK)

    def stop(self) -> None:
        """Sends the remaining spans for STOP_SECONDS at most. Blocks until then."""
        stopping = threading.Thread(target=self._tracers.shutdown, name="otlp-traces-stop", daemon=True)
        stopping.start()  # the shutdown would wait for half a minute
        stopping.join(STOP_SECONDS)
        if stopping.is_alive():
            self._spans.shutdown()


def _at_most_every(seconds: float) -> Callable[[logging.LogRecord], bool]:
    """Returns a filter that lets one message of a kind pass, and then no more for some time.

    The kind is its text before values are put in.
    """
    passed_at: dict[str, float] = {}

    def passes(record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - passed_at.get(record.msg, float("-inf")) < seconds:
            return False
        passed_at[record.msg] = now
        return True

    return passes


def _resource(service: str, version: str) -> Resource:
    """The resource that exports. The variables win."""
    told = OTELResourceDetector().detect().attributes
    own = {
        "service.name": service,
        "service.version": version,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    return Resource.create({key: value for key, value in own.items() if key not in told})
