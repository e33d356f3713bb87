"""What the engine tells Prometheus: which one it is, and of native how much it holds, refuses and answers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from namesrv.server.engines.chosen_engine import ChosenEngine

_GAUGES = {
    "connections": "Open connections.",
    "calls_under_way": "Calls that the event loop has, or that wait for it.",
    "assembling_bytes": "Bytes of requests that are still coming in.",
    "waiting_bytes": "Bytes of answers that wait for their readers, about.",
    "cache_bytes": "Bytes of answers that are kept.",
    "cache_answers": "Answers that are kept, stale ones included.",
}

_COUNTERS = {
    "accepted_connections": "Connections that were taken.",
    "refused_connections": "Connections that were closed at once, in their handshakes, or for what the client speaks.",
    "refused_of_address": "Connections of these that were closed because their address had too many.",
    "closed_for_waiting": "Connections that were closed because they held most of what waited for readers.",
    "closed_for_cancels": "Connections that were closed because they cancelled too many calls.",
    "closed_for_floods": "Connections that were closed because they sent little but frames of control.",
    "refused_calls": "Calls that were refused because too many were under way.",
    "cancelled_calls": "Calls that ended before they were answered.",
    "asked_calls": "Calls that the event loop was asked.",
}


class EngineMetrics(Collector):
    """The engine's gauges and counters."""

    def __init__(
        self, registry: CollectorRegistry, engine: ChosenEngine, stats: Callable[[], Mapping[str, int]]
    ) -> None:
        self._engine = engine
        self._stats = stats
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Everything as it is now."""
        engine = GaugeMetricFamily("namesrv_engine", "1 for the engine that runs.", labels=["engine", "why"])
        engine.add_metric(self._engine, 1.0)
        yield engine
        stats = self._stats()
        for name, text in _GAUGES.items() if stats else ():
            yield GaugeMetricFamily(f"namesrv_engine_{name}", text, value=float(stats[name]))
        for name, text in _COUNTERS.items() if stats else ():
            yield CounterMetricFamily(f"namesrv_engine_{name}", text, value=float(stats[name]))
