"""Spans of calls, answered and made, which W3C's trace context ties together. Loaded only where traces are exported.

Streams have none: they are open for days. Attributes are the method, the code and the target, never a topic or broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Token
from typing import Any, NamedTuple

import grpc
import structlog
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from groundwork.call_metrics import Metadata, method_name

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
"""Codes that mark a server's span as an error (OpenTelemetry: conventions for gRPC); others are answers."""


class ServerSpan(NamedTuple):
    """A span of a call under way."""

    span: Span
    logged: Mapping[str, Token[Any]]
    """The fields that log lines of this call carry."""


class CallTraces:
    """Gives each call that is sampled a span, and its log lines the trace's id."""

    def __init__(self, tracer: Tracer, *, begins_traces: bool = True) -> None:
        """Makes spans by a tracer; calls whose callers name no trace have none if it never begins one."""
        self._tracer = tracer
        self._begins_traces = begins_traces

    def of(self, method: str, *, streams: bool) -> MethodTraces | None:
        """The spans of one call of the contract; None for streams."""
        return None if streams else MethodTraces(self._tracer, method, begins_traces=self._begins_traces)


class MethodTraces:
    """Makes the spans of one call of the contract."""

    def __init__(self, tracer: Tracer, method: str, *, begins_traces: bool) -> None:
        self._tracer = tracer
        self._begins_traces = begins_traces
        self._method = method
        self._attributes = _attributes(method)

    def started(self, metadata: Callable[[], Metadata | None]) -> ServerSpan | None:
        """A call began, in the trace that its caller names. None: it is not sampled."""
        carrier = {key: str(value) for key, value in metadata() or () if key in _CONTEXT_KEYS}
        if not carrier and not self._begins_traces:  # most calls: the sampler would say no, and take its time
            return None
        context = _PROPAGATOR.extract(carrier)
        span = self._tracer.start_span(self._method, context, SpanKind.SERVER, self._attributes)
        if not span.is_recording():
            return None
        trace_id = format_trace_id(span.get_span_context().trace_id)
        return ServerSpan(span, structlog.contextvars.bind_contextvars(trace_id=trace_id))

    def ended(self, code: grpc.StatusCode, started: ServerSpan | None) -> None:
        """A call ended."""
        if started is not None:
            structlog.contextvars.reset_contextvars(**started.logged)
            _end(started.span, code, is_error=code in _SERVER_FAULTS)


class TracedCalls(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # only generic in its stubs
    """Gives each call of a connection a span, and sends its id to the server. Called by gRPC."""

    def __init__(self, tracer: Tracer, target: str) -> None:
        self._tracer = tracer
        self._target = target

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Traces a call until its answer is there."""
        method = method_name(client_call_details)
        span = self._tracer.start_span(
            method, kind=SpanKind.CLIENT, attributes={**_attributes(method), "server.address": self._target}
        )
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span))
        metadata = (*(client_call_details.metadata or ()), *carrier.items())
        call = continuation(client_call_details._replace(metadata=metadata), request)
        call.add_done_callback(lambda done: _end(span, done.code(), is_error=done.code() is not grpc.StatusCode.OK))
        return call


def _attributes(method: str) -> dict[str, str]:
    return {"rpc.system.name": "grpc", "rpc.method": method}


def _end(span: Span, code: grpc.StatusCode, *, is_error: bool) -> None:
    span.set_attribute("rpc.response.status_code", code.name)
    if is_error:
        span.set_attribute("error.type", code.name)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
