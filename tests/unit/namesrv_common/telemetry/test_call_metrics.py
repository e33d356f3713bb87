"""Metrics of calls: those answered without getting to the observers, and those to a target that was forgotten."""

from __future__ import annotations

import grpc
from prometheus_client import CollectorRegistry

from namesrv_common.server.call_metrics import CallMetrics, ClientCallMetrics

METHOD = "a.B/C"
OK, NOT_FOUND = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND


def test_calls_answered_elsewhere_are_added_to_those_that_were_observed() -> None:
    registry = CollectorRegistry()
    elsewhere = {(METHOD, OK): (5, 0.25), (METHOD, NOT_FOUND): (2, 0.5)}
    metrics = CallMetrics(registry, lambda: elsewhere)
    observed = metrics.of(METHOD, streams=False)
    observed.ended(OK, observed.started(lambda: ()))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"grpc_method": METHOD, **labels})

    assert value("grpc_server_call_started_total") == 8
    duration = "grpc_server_call_duration_seconds"
    assert value(f"{duration}_count", grpc_status="OK") == value(f"{duration}_bucket", grpc_status="OK", le="+Inf") == 6
    assert value(f"{duration}_count", grpc_status="NOT_FOUND") == 2
    assert value(f"{duration}_sum", grpc_status="NOT_FOUND") == 0.5
    assert value(f"{duration}_bucket", grpc_status="NOT_FOUND", le="0.0001") == 2


def test_a_target_that_was_forgotten_leaves_nothing_even_if_its_last_call_ends_later() -> None:
    registry = CollectorRegistry()
    metrics = ClientCallMetrics(registry)
    metrics.of("gone")
    metrics.began("m", "gone")
    metrics.forget("gone")
    metrics.began("m", "gone")
    metrics.ended("m", "gone", code=grpc.StatusCode.OK, seconds=1.0)
    assert [sample for family in registry.collect() for sample in family.samples] == []
