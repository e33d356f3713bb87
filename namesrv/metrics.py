"""Metrics of the name server: names, help texts and the values that a scrape reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from namesrv.app.access import FairShares
from namesrv.app.channels import StallDetector
from namesrv.app.durable_routes import DurableRoutes
from namesrv.app.event_log import RegistrationCounter
from namesrv.app.upkeep import DigestSamples, SymptomCounter
from namesrv.app.watches import WatchStreams
from namesrv.core.changes import Change, LiveChange
from namesrv.core.model import Doubt, RemovalReason
from namesrv.core.snapshot import Pins
from namesrv.core.state import RouteState
from namesrv.engines.api import EngineServer, Hits
from namesrv.remoting.connection import OnAnswer
from namesrv.remoting.wire import RequestCode
from namesrv.settings import NamesrvSettings
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.call_metrics import DURATION_BUCKETS, CallMetrics, CallObserver
from namesrv_common.server.metrics_http import Exports, MetricsServer, metrics_registry, open_telemetry
from namesrv_common.tls.listener_tls import ListenerTls

# Metrics of a name server: its changes, its readers, its tables.

Family = GaugeMetricFamily | CounterMetricFamily

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: from a watch that is told at once to one whose reader is about to be cut."""

ALIVE_SECONDS = 10.0
"""An event loop that has been blocked for so long will not recover by itself."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the gauges come from. They are read from the scrape's thread: single values only."""

    state: RouteState
    stall_detector: StallDetector
    pins: Pins
    watchers: WatchStreams
    registrations: RegistrationCounter
    tls: ListenerTls | None
    durable: DurableRoutes
    digest_samples: DigestSamples
    symptoms: SymptomCounter
    shares: FairShares
    """What callers hold."""
    server: EngineServer


Values = float | None | Iterable[tuple[Sequence[str], float]]
"""The value of a metric, None if this name server has no such metric, or a value for each combination of labels."""

Rows = Iterable[tuple[str, str, Values, *tuple[str, ...]]]
"""Name, text and values of each metric, and the names of its labels."""


def _gauges(of: Sources) -> Rows:
    state, tables, index, log = of.state, of.state.tables, of.state.index, of.state.change_log
    symptoms, durable = of.symptoms.last, of.durable
    doubts, shares = tuple(state.doubts.values()), of.shares.by_kind().items()
    unconfirmed = sum(why.is_unconfirmed for why in doubts)
    names_again = len(tables.broker_addr_table) - len(index.clusters_by_name)
    refused = None if durable.crashes is None else durable.data_dir_problem() is not None
    ends = [] if of.tls is None else [(["listener"], of.tls.value.validity.not_after.timestamp())]
    digests = [([str(minute)], number) for minute, number in of.digest_samples.by_minute.items()]
    yield "live_brokers", "Live brokers, including unconfirmed ones.", len(tables.broker_live_table)
    yield "unconfirmed_brokers", "Brokers that have not registered since a start or mass loss.", unconfirmed
    yield "guard_held_brokers", "Lost brokers that the mass-loss guard keeps.", doubts.count(Doubt.GUARD)
    yield "topics", "Topics with a route.", len(tables.topic_queue_table)
    yield "unwritable_topics", "Application topics without a writable queue.", symptoms.unwritable_topics
    yield "lost_topics", "Application topics whose last broker left within a day.", symptoms.lost_topics
    yield "broker_groups", "Broker groups.", len(tables.broker_addr_table)
    yield "groups_without_master", "Groups that have only slaves.", symptoms.groups_without_master
    yield "local_brokers", "Brokers at loopback or wildcard addresses, if others are not.", symptoms.local_brokers
    yield "duplicate_group_names", "Groups with a name that another cluster had first.", names_again
    yield "held_topics", "Topics on hold that brokers report.", len(index.held_queue_table)
    yield "intents", "Drains and holds in force.", len(state.intents.intents)
    yield "revision", "Revision of the last change in this epoch.", state.revision
    yield "change_log_changes", "Changes that can still be read.", len(log)
    yield "compacted_revision", "Changes after this revision can still be read.", log.compacted_revision
    yield "pins", "Pinned snapshots.", len(of.pins)
    yield "watchers", "Open watches and change streams.", len(of.watchers)
    yield "warm", "1 if unknown topics are NOT_FOUND, 0 while they are UNAVAILABLE.", durable.warm_up.is_warm()
    delay, lag = of.stall_detector.longest_delay(), state.liveness.longest_overdue
    yield "event_loop_delay_seconds", "Longest delay in the last minute; a stall above 1 s.", delay
    yield "expiry_lag_seconds", "Longest overdue timeout at the last scan; normally below 10.", lag
    yield "durable_writes_refused", "1 while the disk refuses the database or the snapshot file.", refused
    age = durable.snapshots.age_seconds()
    yield "snapshot_age_seconds", "Time since the snapshot file last held the tables; normally below 30.", age
    yield "certificate_not_after_seconds", "Expiry of a certificate, seconds since the Unix epoch.", ends, "use"
    yield "routes_digest", "Hash of the tables and settings at a full minute.", digests, "minute"
    yield "shares_used", "Use of each shared limit.", [([kind], held.used) for kind, held in shares], "kind"
    yield "shares_limit", "The shared limits.", [([kind], held.most) for kind, held in shares], "kind"


def _counters(of: Sources) -> Rows:
    """The counters, which get the suffix ``_total``."""
    counted = of.registrations
    refused = [([kind], held.refused) for kind, held in of.shares.by_kind().items()]
    yield "crashes", "Processes on this data directory that did not stop in order.", of.durable.crashes
    text = "Changes missing in the journal, because its queue was full."
    yield "journal_changes_left_out", text, of.durable.journal.left_out
    what = "Calls that keep brokers registered: full, increment, refresh, query or heartbeat."
    yield "registrations", what, list(counted.counts.items()), "kind", "result"
    yield "topics_skipped", "Invalid topics of RocketMQ's brokers.", counted.topics_skipped
    yield "shares_refused", "Refusals at the shared limits.", refused, "kind"


def _families(kind: type[GaugeMetricFamily | CounterMetricFamily], rows: Rows) -> Iterator[Family]:
    for name, text, values, *labels in rows:
        family = kind(f"namesrv_{name}", text, labels=labels)
        if values is None:
            continue
        for of, value in values if isinstance(values, Iterable) else [((), values)]:
            family.add_metric(of, float(value))
        yield family


class NamesrvMetrics(Collector):
    """The gauges and counters of the tables and the engine, the counters of changes, and the histograms."""

    def __init__(self, registry: CollectorRegistry, sources: Sources) -> None:
        self._sources = sources
        self._changes = Counter(
            "namesrv_changes", "Changes of the tables, by call or event.", ["cause"], registry=registry
        )
        self._removals = Counter("namesrv_removals", "Removed brokers, by reason.", ["reason"], registry=registry)
        for reason in RemovalReason:  # or the first removal would be no increase
            self._removals.labels(reason.name)
        text = "Time from a change to its message, per reader; a slow reader affects only its own samples."
        lag = Histogram("namesrv_watch_lag_seconds", text, buckets=LAG_BUCKETS, registry=registry)
        sources.watchers.on_lag = lag.observe
        self._remoting = Histogram(
            "namesrv_remoting_request_duration_seconds",
            "Time of requests of RocketMQ's protocol, by its name and result: ok or refused.",
            ["code", "result"],
            buckets=DURATION_BUCKETS,
            registry=None,
        )
        registry.register(self)
        sources.state.change_log.listen(self._on_change)

    def alive(self) -> str | None:
        """The problem if the event loop does not run; None if it does."""
        delay = self._sources.stall_detector.longest_delay()
        return None if delay < ALIVE_SECONDS else f"the event loop was held up for {delay:.0f} s"

    def ready(self) -> str | None:
        """Why lookups should go to other name servers; None if they are welcome."""
        if self._sources.state.frozen:
            return "shutting down"
        serves = self._sources.durable.warm_up.serves()
        return None if serves else "warming: without a snapshot file, brokers may be missing"

    def on_remoting_answer(self, code: int, seconds: float, is_refused: bool) -> None:
        """Counts and times a request of RocketMQ's protocol."""
        self._remoting.labels(RequestCode(code).name, "refused" if is_refused else "ok").observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from _families(GaugeMetricFamily, _gauges(self._sources))
        yield from _families(CounterMetricFamily, _counters(self._sources))
        hits = {(RequestCode(code).name, "ok"): hit for code, hit in self._sources.server.frame_hits().items()}
        yield from _with_hits(self._remoting, hits)
        yield from _of_engine(self._sources.server)

    def _on_change(self, change: Change) -> None:
        self._changes.labels(change.cause.call or "start").inc()
        for row in change.rows:
            if isinstance(row, LiveChange) and row.reason is not None:
                self._removals.labels(row.reason.name).inc()


class AnsweredCalls(CallMetrics, Collector):
    """The calls of the servicers, and in the lowest bucket those that the engine answered by itself."""

    def __init__(self, registry: CollectorRegistry, hits: Callable[[], Hits]) -> None:
        super().__init__(None)
        self._hits = hits
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        hits = {(method, code.name): hit for (method, code), hit in self._hits().items()}
        for method, _ in hits:  # so that it has samples
            self.started.labels(method)
        yield from _with_hits(self.started, hits)
        yield from _with_hits(self.duration, hits)


def _with_hits(metric: Counter | Histogram, hits: Mapping[tuple[str, str], tuple[int, float]]) -> Iterator[Metric]:
    """A metric with what the engine answered by itself: how often and for how many seconds, by the metric's labels."""
    if isinstance(metric, Histogram):
        for labels in hits:  # so that they have samples
            metric.labels(*labels)
    for family in metric.collect():
        family.samples = [_sample_with_hits(sample, hits) for sample in family.samples]
        yield family


def _sample_with_hits(sample: Sample, hits: Mapping[tuple[str, str], tuple[int, float]]) -> Sample:
    first, second, *_ = *(value for label, value in sample.labels.items() if label != "le"), None
    number = 1 if sample.name.endswith("_sum") else 0
    found = (hit[number] for labels, hit in hits.items() if labels[0] == first and second in {None, labels[1]})
    return sample._replace(value=sample.value + sum(found))


# What the native engine tells Prometheus: how much it holds, refuses and answers by itself.

_GAUGES = {
    "remoting_connections": "Open connections of RocketMQ's protocol, which count as connections, too.",
    "connections": "Open connections.",
    "calls_under_way": "Calls that wait for their request or for Python.",
    "request_bytes": "Bytes of requests and metadata.",
    "waiting_bytes": "Bytes of responses that wait for readers.",
    "cache_bytes": "Bytes of cached responses.",
    "cache_answers": "Cached responses, including stale ones.",
}

_COUNTERS = {
    "accepted_connections": "Accepted connections.",
    "refused_connections": "Refused connections; the log has the reasons.",
    "refused_of_address": "Refused connections whose address had too many.",
    "closed_for_waiting": "Connections closed for unread responses.",
    "closed_for_cancels": "Connections closed for cancelled calls.",
    "closed_for_floods": "Connections closed for floods of control frames.",
    "refused_calls": "Calls refused at a limit.",
    "cancelled_calls": "Calls cancelled before their response.",
    "asked_calls": "Calls that the cache did not answer.",
}


def _of_engine(server: EngineServer) -> Iterator[Family]:
    if not (stats := server.stats()):
        return
    for kind, texts in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        yield from _families(kind, ((f"engine_{name}", text, stats[name]) for name, text in texts.items()))
    errors = [([reason], count) for reason, count in server.http2_errors().items()]
    text = "HTTP/2 errors reported to clients, by their RFC 9113 names."
    yield from _families(CounterMetricFamily, [("engine_http2_errors", text, errors, "reason")])


# Exports: of metrics over HTTP, and of traces to a collector.


class Observability(Exports):
    """Costs nothing where neither a listener nor a variable OTEL_... asks for it."""

    def __init__(self, settings: NamesrvSettings, sources: Sources) -> None:
        """Takes the listener's port; answers once started.

        Args:
            sources: Objects that the gauges are read from, if a listener is requested.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
            ValueError: The variables OTEL_... cannot be followed.
        """
        registry = metrics_registry()
        super().__init__(open_telemetry("namesrv", os.environ, traces_follow_callers=True))
        self.begins_traces = self.telemetry is not None and self.telemetry.begins_traces
        """Whether any call may be traced, which only the sampler knows."""
        self.on_remoting_answer: OnAnswer = lambda *_: None
        """Watches requests of RocketMQ's protocol."""
        self.observers: tuple[CallObserver, ...] = ()
        """Watch the calls."""
        if settings.metrics_listen:
            self.observers = (AnsweredCalls(registry, sources.server.hits),)
            metrics = NamesrvMetrics(registry, sources)
            self.on_remoting_answer = metrics.on_remoting_answer
            listen = Endpoint.parse(settings.metrics_listen, allow_port_zero=True)
            self.listener = MetricsServer(listen, registry, metrics.alive, metrics.ready)
        if self.telemetry is not None:
            self.observers = (*self.observers, self.telemetry)
