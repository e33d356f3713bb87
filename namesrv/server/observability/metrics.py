"""Metrics of a name server: its changes, its readers, its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from groundwork.connections.certificates import Validity
from namesrv.core.changes import Change, LiveRemoved
from namesrv.core.pins import Pins
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.state import Unconfirmed
from namesrv.core.warm_up import WarmUp
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.digest_samples import DigestSamples
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.counters import FrontCounter, RegistrationCounter

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily

ALIVE_SECONDS = 10.0
"""An event loop that has been held up for so long will not come back by itself."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the gauges come from. They are read from the scrape's thread: single values only."""

    manager: RouteInfoManager
    warm_up: WarmUp
    stall_detector: StallDetector
    pins: Pins
    watchers: WatchStreams
    registrations: RegistrationCounter
    certificates: Callable[[], Mapping[str, Validity]]
    """Certificates by their use: listener or client."""
    snapshot_age: Callable[[], float | None]
    """Seconds since the snapshot file last held what the tables held; None before the first is wanted."""
    digest_samples: DigestSamples
    front: FrontCounter | None = None
    """Counts RocketMQ's protocol; None where nobody listens for it."""
    shares: FairShares = field(default_factory=FairShares.of)
    """What callers hold."""


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
        delay = self._sources.stall_detector.longest_delay()
        return None if delay < ALIVE_SECONDS else f"the event loop was held up for {delay:.0f} s"

    def ready(self) -> str | None:
        """Why lookups cannot rely on the tables yet; None if they can."""
        if self._sources.manager.frozen:
            return "shutting down"
        return None if self._sources.warm_up.is_warm() else "warming: brokers of the time before may be missing"

    def collect(self) -> Iterator[Family]:
        """Everything as it is now."""
        yield from self._gauges()
        yield from self._certificates()
        age = self._sources.snapshot_age()
        if age is not None:
            text = "Time since the snapshot file last held what the tables held."
            yield GaugeMetricFamily("namesrv_snapshot_age_seconds", text, value=age)
        yield _of_digests(self._sources.digest_samples)
        registrations = CounterMetricFamily(
            "namesrv_registrations", "What agents sent to keep brokers registered.", labels=["kind", "result"]
        )
        for labels, count in list(self._sources.registrations.counts.items()):
            registrations.add_metric(labels, count)
        yield registrations
        yield CounterMetricFamily(
            "namesrv_topics_skipped",
            "Topics of registrations that were passed over.",
            value=self._sources.registrations.topics_skipped,
        )
        if self._sources.front is not None:
            yield from _of_front(self._sources.front)
        yield from share_metrics(self._sources.shares)
        lag = self._sources.watchers.lag
        text = "Time from a change to the message about it, to each watch."
        yield HistogramMetricFamily("namesrv_watch_lag_seconds", text, lag.buckets(), lag.total)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        manager, tables = self._sources.manager, self._sources.manager.tables
        unconfirmed = list(manager.unconfirmed.values())
        log = manager.change_log
        for name, text, value in (
            ("live_brokers", "Brokers in the live table, unconfirmed ones included.", len(tables.broker_live_table)),
            ("unconfirmed_brokers", "Brokers that have not registered since a start or a loss.", len(unconfirmed)),
            ("guard_held_brokers", "Brokers that the mass-loss guard holds.", unconfirmed.count(Unconfirmed.GUARD)),
            ("topics", "Topics with a route.", len(tables.topic_queue_table)),
            ("broker_groups", "Broker groups.", len(tables.broker_addr_table)),
            (
                "groups_of_a_name_again",
                "Broker groups of a name that another cluster had first.",
                len(tables.broker_addr_table) - len(tables.clusters_by_name),
            ),
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
                self._sources.stall_detector.longest_delay(),
            ),
            ("expiry_lag_seconds", "How overdue a broker was at the last scan, at most.", manager.expiry_lag_seconds),
        ):
            yield GaugeMetricFamily(f"namesrv_{name}", text, value=float(value))

    def _certificates(self) -> Iterator[GaugeMetricFamily]:
        ends = GaugeMetricFamily(
            "namesrv_certificate_not_after_seconds",
            "When a certificate ends, seconds since the Unix epoch.",
            labels=["use"],
        )
        for use, validity in self._sources.certificates().items():
            ends.add_metric([use], validity.not_after.timestamp())
        yield ends

    def _on_change(self, change: Change) -> None:
        self._changes.labels(change.cause.call or "start").inc()
        for row in change.rows:
            if isinstance(row, LiveRemoved):
                self._removals.labels(row.reason.name).inc()


def _of_digests(samples: DigestSamples) -> Family:
    text = "What brokers report as a number, by the minute of the hour."
    digests = GaugeMetricFamily("namesrv_routes_digest", text, labels=["minute"])
    for minute, number in samples.by_minute.items():
        digests.add_metric([str(minute)], number)
    return digests


def share_metrics(shares: FairShares) -> Iterator[Family]:
    """What callers hold, and how often that was too much."""
    used = GaugeMetricFamily("namesrv_shares_used", "What all callers hold, by kind.", labels=["kind"])
    limit = GaugeMetricFamily("namesrv_shares_limit", "Most that they may hold together.", labels=["kind"])
    refused = CounterMetricFamily(
        "namesrv_shares_refused", "Refusals because a caller, or all together, held too much.", labels=["kind"]
    )
    for kind, held in shares.by_kind().items():
        used.add_metric([kind], held.used)
        limit.add_metric([kind], held.most)
        refused.add_metric([kind], held.refused)
    yield from (used, limit, refused)


def _of_front(front: FrontCounter) -> Iterator[Family]:
    yield GaugeMetricFamily("namesrv_remoting_connections", "Of RocketMQ's protocol.", value=front.connections)
    requests = CounterMetricFamily(
        "namesrv_remoting_requests", "Requests in RocketMQ's protocol that were answered.", labels=["code", "result"]
    )
    for code, count in list(front.answered.items()):
        refused = front.refused.get(code, 0)
        requests.add_metric([str(code), "refused"], refused)
        requests.add_metric([str(code), "ok"], count - refused)
    yield requests
