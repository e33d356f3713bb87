"""Traces that go to an OpenTelemetry collector: to one that takes them, one that hangs, and to none."""

from __future__ import annotations

import signal
import sys
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.programs.agents import Agent, held_port
from tests.support.programs.processes import NamesrvProcess, ended, eventually
from tests.support.secured.fleet import refused_start

ROUTE = "namesrv_api.v1.RouteService/GetTopicRoute"
REGISTER = "namesrv_api.v1.RegistrationService/RegisterBroker"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)


class Collector(ScriptedNamesrv):
    """A collector of OpenTelemetry's over gRPC: keeps what it is sent, or answers nothing."""

    services = (trace_service_pb2.DESCRIPTOR.services_by_name["TraceService"],)

    def Export(self, *_: object) -> Any:  # noqa: N802 - the name of the call
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def environment(self) -> dict[str, str]:
        """What has a program send everything here, at once."""
        return {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.endpoint}"}

    def spans(self, service: str) -> list[Span]:
        """All spans of a program so far."""
        return [
            span
            for request in list(self.asked["Export"])
            for of_resource in request.resource_spans
            if attributes(of_resource.resource)["service.name"] == service
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]


def attributes(of: Any) -> dict[str, str]:
    """Attributes of a resource or a span; all of ours are strings."""
    return {attribute.key: attribute.value.string_value for attribute in of.attributes}


def span_of(found: Collector, service: str, name: str) -> Span:
    """The first span of a name, once it is there."""
    spans = eventually(lambda: [span for span in found.spans(service) if span.name == name])
    return spans[0]


def test_a_call_is_one_trace_from_its_caller_to_the_log_or_has_no_span() -> None:
    request = route_service_pb2.GetTopicRouteRequest(topic="Nothing")
    with (
        Collector() as found,
        NamesrvProcess(environment=found.environment) as namesrv,
        Agent(str(namesrv.endpoint), environment=found.environment),
        namesrv.connect() as client,
    ):
        sent, taken = span_of(found, "broker-agent", REGISTER), span_of(found, "namesrv", REGISTER)
        assert (sent.kind, taken.kind) == (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER)
        assert (taken.trace_id, taken.parent_span_id) == (sent.trace_id, sent.span_id)
        expected = {"rpc.system.name": "grpc", "rpc.method": REGISTER, "rpc.response.status_code": "OK"}
        assert attributes(taken) == expected
        assert attributes(sent) == {**attributes(taken), "server.address": str(namesrv.endpoint)}
        assert namesrv.wait_for("broker_registered")["trace_id"] == sent.trace_id.hex()
        for metadata in ((), (("traceparent", "no such thing"),), SAMPLED):
            with pytest.raises(grpc.RpcError):
                client.routes.GetTopicRoute(request, timeout=client.TIMEOUT, metadata=metadata)
        span = span_of(found, "namesrv", ROUTE)
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
        assert attributes(span)["rpc.response.status_code"] == "NOT_FOUND"
        assert namesrv.terminate() == 0
        assert [one.name for one in found.spans("namesrv")].count(ROUTE) == 1


@pytest.mark.parametrize("hangs", [False, True])
def test_a_collector_that_is_gone_or_hangs_holds_up_no_call_or_shutdown(*, hangs: bool) -> None:
    with Collector() as found, held_port() as nobody:
        found.hang()
        gone = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{nobody}", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        variables = {**found.environment, "OTEL_TRACES_SAMPLER": "always_on", **({} if hangs else gone)}
        with (
            NamesrvProcess(environment=variables) as namesrv,
            Agent(str(namesrv.endpoint), environment=variables) as agent,
            namesrv.connect() as client,
        ):

            def failures() -> list[dict[str, Any]]:
                return [line for line in namesrv.lines if "Failed to export" in str(line["event"])]

            eventually(client.route)
            eventually(lambda: len(found.asked["Export"]) >= 2 if hangs else failures())
            for _ in range(3_000):  # more than the queue of spans takes
                assert client.route()
            for process in (namesrv, agent):  # together: each takes seconds to give its collector up
                process.signal(signal.SIGTERM)
            assert (namesrv.wait(), agent.wait()) == (0, 0)
            assert namesrv.events("namesrv_stopped")
            assert hangs or len(failures()) == 1, "the log says it once"


def test_a_variable_that_cannot_be_followed_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    assert refused_start() == "namesrv: OTEL_TRACES_EXPORTER is 'zipkin', must be otlp or none"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    said = "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/protobuf', must be grpc: collectors take it at port 4317"
    assert refused_start() == f"namesrv: {said}"


def test_who_wants_no_export_does_not_load_it() -> None:
    program = (
        "import sys, namesrv.cli, namesrv.server.server, broker_agent.cli, broker_agent.observability as o\n"
        "assert o.AgentObservability(None).observers == ()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert ended([sys.executable, "-c", program]).stdout == "[]\n"
