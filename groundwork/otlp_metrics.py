"""The program's metrics in OpenTelemetry's form, and the thread that sends them.

Loaded only where it is switched on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import structlog
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    DataT,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

_UNITS = {"_seconds": "s", "_bytes": "By"}
_GRPC = "grpc_"
_GRPC_UNITS = {"call_started": "{call}", "attempt_started": "{attempt}"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE

_log = structlog.get_logger(__name__)


def metrics_data(
    families: Iterable[Family], resource: Resource, scope: InstrumentationScope, begun_nanos: int, now_nanos: int
) -> MetricsData:
    """Metrics as a collector takes them; one that hands them to Prometheus gives them the names they have there.

    Args:
        scope: What measured them.
        begun_nanos: Since when counters count, nanoseconds since the Unix epoch.
        now_nanos: When they were read.
    """
    metrics = [_metric(family, begun_nanos, now_nanos) for family in families if family.samples]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(family: Family, begun: int, now: int) -> Metric:
    name, unit = _name_and_unit(family.name)
    return Metric(name, family.documentation, unit, _data(family, begun, now))


def _name_and_unit(name: str) -> tuple[str, str]:
    """Those of gRFC A66 have dots there; Prometheus' names have the unit, OpenTelemetry's do not."""
    unit = ""
    for suffix, suffix_unit in _UNITS.items():
        if name.endswith(suffix):
            name, unit = name.removesuffix(suffix), suffix_unit
    if name.startswith(_GRPC):
        side, _, rest = name.removeprefix(_GRPC).partition("_")
        return f"grpc.{side}.{rest.replace('_', '.')}", _GRPC_UNITS.get(rest, unit)
    return name, unit


def _data(family: Family, begun: int, now: int) -> DataT:
    if family.type == "histogram":
        return Histogram(list(_histogram_points(family, begun, now)), _CUMULATIVE)
    is_counter = family.type == "counter"
    samples = [sample for sample in family.samples if not is_counter or sample.name.endswith("_total")]
    points = [NumberDataPoint(_attributes(sample), begun if is_counter else 0, now, sample.value) for sample in samples]
    return Sum(points, _CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)


def _histogram_points(family: Family, begun: int, now: int) -> Iterator[HistogramDataPoint]:
    """Samples of one series come together: its cumulative buckets, then count and sum."""
    bounds: list[float] = []
    cumulative: list[float] = []
    count = 0.0
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            cumulative.append(sample.value)
        elif sample.name.endswith("_count"):
            count = sample.value
        elif sample.name.endswith("_sum"):
            counts = [int(high - low) for low, high in zip([0.0, *cumulative], cumulative, strict=False)]
            finite = [bound for bound in bounds if bound != math.inf]
            yield HistogramDataPoint(
                _attributes(sample),
                begun,
                now,
                int(count),
                sample.value,
                counts,
                finite,
                min=None,  # type: ignore[arg-type]  # not known, and optional on the wire
                max=None,  # type: ignore[arg-type]
            )
            bounds, cumulative = [], []


def _attributes(sample: Sample) -> dict[str, str]:
    return {key.replace("grpc_", "grpc.", 1): value for key, value in sample.labels.items() if key != "le"}


class MetricExports:
    """Sends the metrics of a registry again and again, from a thread of its own, and once at the end.

    There is no queue: what a collector misses, the next message has.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        registry: CollectorRegistry,
        resource: Resource,
        scope: InstrumentationScope,
        *,
        interval_seconds: float,
        now_nanos: Callable[[], int] = time.time_ns,
    ) -> None:
        self._exporter = exporter
        self._registry = registry
        self._resource = resource
        self._scope = scope
        self._interval = interval_seconds
        self._now_nanos = now_nanos
        self._begun_nanos = now_nanos()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)

    def start(self) -> None:
        """Starts to send."""
        self._thread.start()

    def finish(self) -> None:
        """Lets the thread send everything once more and end. Does not wait for it."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Waits for the end, and gives up what has not been sent by then."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._exporter.shutdown()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._interval)
            try:
                self._exporter.export(self._read())
            except Exception:  # noqa: BLE001 - the boundary of a thread; the next message may work
                _log.exception("metrics_not_exported")

    def _read(self) -> MetricsData:
        now = self._now_nanos()
        self._begun_nanos = min(self._begun_nanos, now)  # collectors drop points that end before they start
        return metrics_data(self._registry.collect(), self._resource, self._scope, self._begun_nanos, now)
