"""What the variables OTEL_... turn on, and what the metrics of Prometheus become at a collector."""

from __future__ import annotations

import sys

import grpc
import pytest
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client import Histogram as PrometheusHistogram

from groundwork.call_metrics import ClientCallMetrics
from groundwork.otlp_metrics import MetricExports, metrics_data
from groundwork.signals import Signals, open_telemetry

BOTH, NEITHER = Signals(metrics=True, traces=True), Signals(metrics=False, traces=False)
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, NEITHER),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, NEITHER),
        (ENDPOINT, BOTH),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, NEITHER),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, Signals(metrics=True, traces=False)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4317"}, Signals(metrics=False, traces=True)),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, Signals(metrics=True, traces=False)),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
            | {"OTEL_METRICS_EXPORTER": "none"},
            Signals(metrics=False, traces=True),
        ),
    ],
)
def test_a_signal_is_sent_where_its_exporter_or_an_endpoint_asks_for_it(
    environ: dict[str, str], wanted: Signals
) -> None:
    assert Signals.wanted(environ) == wanted


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "groundwork.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"opentelemetry.sdk.trace is missing; install the extra otel: pip "):
        open_telemetry("namesrv", ENDPOINT, CollectorRegistry(), traces_follow_callers=True)


def translated(registry: CollectorRegistry) -> dict[str, Metric]:
    data = metrics_data(registry.collect(), Resource({}), InstrumentationScope("test"), 1, 2)
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def test_a_histogram_keeps_its_buckets_which_are_not_cumulative_any_more() -> None:
    registry = CollectorRegistry()
    histogram = PrometheusHistogram(
        "grpc_server_call_duration_seconds", "Time.", ["grpc_method"], buckets=(1, 2), registry=registry
    )
    for method, seconds in (("a", 0.5), ("a", 1.5), ("a", 1.6), ("b", 7.0)):
        histogram.labels(method).observe(seconds)
    metric = translated(registry)["grpc.server.call.duration"]
    assert metric.unit == "s"
    assert isinstance(metric.data, Histogram)
    a, b = metric.data.data_points
    assert (a.attributes, list(a.bucket_counts), list(a.explicit_bounds)) == ({"grpc.method": "a"}, [1, 2, 0], [1, 2])
    assert (a.count, a.sum) == (3, 3.6)
    assert (b.attributes, list(b.bucket_counts), b.count) == ({"grpc.method": "b"}, [0, 0, 1], 1)


def test_counters_and_gauges_lose_what_prometheus_puts_on_again() -> None:
    registry = CollectorRegistry()
    PrometheusCounter("namesrv_changes", "Changes.", ["cause"], registry=registry).labels("x").inc(3)
    PrometheusGauge("process_resident_memory_bytes", "Memory.", registry=registry).set(5)
    metrics = translated(registry)
    changes, memory = metrics["namesrv_changes"], metrics["process_resident_memory"]
    assert (changes.unit, memory.unit) == ("", "By")
    assert isinstance(changes.data, Sum)
    assert changes.data.is_monotonic
    assert changes.data.data_points == [NumberDataPoint({"cause": "x"}, 1, 2, 3.0)]
    assert memory.data == Gauge([NumberDataPoint({}, 0, 2, 5.0)])


def test_a_target_that_was_forgotten_leaves_nothing_even_if_its_last_call_ends_later() -> None:
    registry = CollectorRegistry()
    metrics = ClientCallMetrics(registry)
    metrics.interceptor("gone")
    metrics.began("m", "gone")
    metrics.forget("gone")
    metrics.began("m", "gone")
    metrics.ended("m", "gone", code=grpc.StatusCode.OK, seconds=1.0)
    assert [sample for family in registry.collect() for sample in family.samples] == []


def test_a_wall_clock_that_was_set_back_leaves_counters_a_start_before_their_time() -> None:
    class Collector(MetricExporter):
        def export(self, metrics_data: MetricsData, *_: object, **__: object) -> MetricExportResult:
            sent.append(metrics_data)
            return MetricExportResult.SUCCESS

        def shutdown(self, *_: object, **__: object) -> None:
            pass

        def force_flush(self, *_: object) -> bool:
            return True

    registry, sent = CollectorRegistry(), list[MetricsData]()
    PrometheusCounter("namesrv_changes", "Changes.", registry=registry).inc()
    clock = iter((5_000, 1_000)).__next__
    scope = InstrumentationScope("test")
    exports = MetricExports(Collector(), registry, Resource({}), scope, interval_seconds=60.0, now_nanos=clock)
    exports.start()
    exports.finish()
    exports.join(20.0)
    [point] = sent[0].resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert (point.start_time_unix_nano, point.time_unix_nano) == (1_000, 1_000)
