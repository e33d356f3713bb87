"""What a name server tells Prometheus: its calls by gRFC A66's names, its changes, and how its tables are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from groundwork.tls import ListenerTls
from namesrv.core.changes import Change, LiveRemoved
from namesrv.core.pins import Pins
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.core.route_state import Unconfirmed
from namesrv.core.warm_up import WarmUp
from namesrv.server.own_stalls import OwnStalls
from namesrv.server.watchers import Watchers

DURATION_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds; those of gRFC A66 that a call of ours can take."""

ALIVE_SECONDS = 10.0
"""An event loop that has been held up for so long will not come back by itself."""


class CallMetrics:
    """Counts and times calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_call_started", "Calls that began.", ["grpc_method"], registry=registry)
        self._duration = Histogram(
            "grpc_server_call_duration_seconds",
            "Time of calls in the server.",
            ["grpc_method", "grpc_status"],
            buckets=DURATION_BUCKETS,
            registry=registry,
        )

    def of(self, method: str) -> MethodMetrics:
        """The metrics of one call of the contract."""
        return MethodMetrics(
            self._started.labels(method), lambda code: self._duration.labels(method, code.name), time.perf_counter
        )


class MethodMetrics:
    """Counts and times one call of the contract. Children are made once, so that this costs two additions a call."""

    def __init__(
        self, started: Counter, duration: Callable[[grpc.StatusCode], Histogram], clock: Callable[[], float]
    ) -> None:
        self._started = started
        self._duration = duration
        self._clock = clock
        self._ended: dict[grpc.StatusCode, Histogram] = {}

    def started(self) -> float:
        """A call began. Returns when, for ``ended``."""
        self._started.inc()
        return self._clock()

    def ended(self, code: grpc.StatusCode, started: float) -> None:
        """A call ended."""
        child = self._ended.get(code)
        if child is None:
            child = self._ended[code] = self._duration(code)
        child.observe(self._clock() - started)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the gauges come from. They are read from the scrape's thread: single values only."""

    manager: RouteInfoManager
    warm_up: WarmUp
    own_stalls: OwnStalls
    pins: Pins
    watchers: Watchers
    tls: ListenerTls | None = None


class NamesrvMetrics(Collector):
    """The gauges, and the counters of changes."""

    def __init__(self, registry: CollectorRegistry, sources: Sources) -> None:
        self._sources = sources
        self._changes = Counter("namesrv_changes", "Changes of the tables, by cause.", ["cause"], registry=registry)
        self._removals = Counter("namesrv_removals", "Brokers that left, by reason.", ["reason"], registry=registry)
        registry.register(self)
        sources.manager.change_log.listen(self._on_change)

    def alive(self) -> str | None:
        """What is wrong if the event loop does not run; None if it does."""
        delay = self._sources.own_stalls.longest_delay()
        return None if delay < ALIVE_SECONDS else f"the event loop was held up for {delay:.0f} s"

    def ready(self) -> str | None:
        """What look-ups wait for; None if they can rely on what is here."""
        if self._sources.manager.frozen:
            return "shutting down"
        return None if self._sources.warm_up.is_warm() else "warming: brokers of the time before may be missing"

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges as they are now."""
        manager, tables = self._sources.manager, self._sources.manager.tables
        unconfirmed = list(manager.unconfirmed.values())
        log = manager.change_log
        for name, text, value in (
            ("live_brokers", "Brokers in the live table, unconfirmed ones included.", len(tables.broker_live_table)),
            ("unconfirmed_brokers", "Brokers that have not registered since a start or a loss.", len(unconfirmed)),
            ("guard_held_brokers", "Brokers that the mass-loss guard holds.", unconfirmed.count(Unconfirmed.GUARD)),
            ("topics", "Topics with a route.", len(tables.topic_queue_table)),
            ("broker_groups", "Broker groups.", len(tables.broker_addr_table)),
            ("held_topics", "Topics that operators hold back and brokers report.", len(tables.held_queue_table)),
            ("intents", "What operators decided and has not been lifted.", len(manager.intents.intents)),
            ("revision", "Revision of the last change.", manager.revision),
            ("change_log_changes", "Changes that can still be read.", len(log)),
            ("compacted_revision", "Changes after this revision can still be read.", log.compacted_revision),
            ("pins", "Pinned snapshots.", len(self._sources.pins)),
            ("watchers", "Open streams of changes.", len(self._sources.watchers)),
            (
                "warm",
                "1 if unknown topics are NOT_FOUND, 0 while they are UNAVAILABLE.",
                self._sources.warm_up.is_warm(),
            ),
            (
                "event_loop_delay_seconds",
                "Longest delay during the last minute.",
                self._sources.own_stalls.longest_delay(),
            ),
        ):
            yield GaugeMetricFamily(f"namesrv_{name}", text, value=float(value))
        if self._sources.tls is not None:
            ends = self._sources.tls.validity.not_after.timestamp()
            text = "When the listener's certificate ends, seconds since the Unix epoch."
            yield GaugeMetricFamily("namesrv_certificate_not_after_seconds", text, value=ends)

    def _on_change(self, change: Change) -> None:
        self._changes.labels(change.cause.call or "start").inc()
        for row in change.rows:
            if isinstance(row, LiveRemoved):
                self._removals.labels(row.reason.name).inc()
