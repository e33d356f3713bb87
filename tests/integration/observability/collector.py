"""A collector of OpenTelemetry's: takes what it is sent by OTLP over gRPC, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

QUICKLY = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Variables that have spans sent at once."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it got."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.calls = 0
        """So far, those without an answer included."""
        self.answers = threading.Event()
        """Set while calls are answered."""
        self.answers.set()
        self._traces: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802 - the name of the call
        """Keeps the spans once calls are answered."""
        self.calls += 1
        assert self.answers.wait(60), "the test has forgotten it"
        self._traces.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def environment(self) -> dict[str, str]:
        """What has a program send everything here, at once."""
        return {**QUICKLY, "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}

    def spans(self, service: str) -> list[Span]:
        """All spans of a program so far."""
        return [
            span
            for request in list(self._traces)
            for of_resource in request.resource_spans
            if attributes(of_resource.resource)["service.name"] == service
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]


def attributes(of: Any) -> dict[str, str]:
    """Attributes of a resource or a span; all of ours are strings."""
    return {attribute.key: attribute.value.string_value for attribute in of.attributes}


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """A collector on loopback."""
    servicer = Collector()
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        servicer.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        try:
            yield servicer
        finally:
            servicer.answers.set()
            server.stop(0).wait(10)
