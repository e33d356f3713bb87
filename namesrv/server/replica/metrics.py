"""Metrics of a read-only copy: how far behind its leader it is, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from namesrv_api.v1 import route_service_pb2
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from namesrv.core.replica import ReplicaManager
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.observability.metrics import ALIVE_SECONDS, Family, share_metrics


class CopySource(Protocol):
    """Where the gauges come from. They are read from the scrape's thread: single values only."""

    @property
    def manager(self) -> ReplicaManager | None: ...  # noqa: D102

    def status(self) -> route_service_pb2.ReplicaStatus: ...  # noqa: D102

    def problem(self) -> str | None: ...  # noqa: D102


class ReplicaMetrics(Collector):
    """The metrics of a copy."""

    def __init__(
        self, registry: CollectorRegistry, source: CopySource, stall_detector: StallDetector, shares: FairShares
    ) -> None:
        self._source = source
        self._shares = shares
        self._stall_detector = stall_detector
        registry.register(self)

    def alive(self) -> str | None:
        """What is wrong if the event loop does not run; None if it does."""
        delay = self._stall_detector.longest_delay()
        return None if delay < ALIVE_SECONDS else f"the event loop was held up for {delay:.0f} s"

    def ready(self) -> str | None:
        """Why lookups cannot rely on the copy; None if they can."""
        return self._source.problem()

    def collect(self) -> Iterator[Family]:
        """The metrics as they are now."""
        status, manager = self._source.status(), self._source.manager
        gauges = [
            ("replica_connected", "1 while the leader's stream stands.", float(status.leader_connected)),
            ("replica_copies", "How often everything had to be copied.", float(status.copies)),
        ]
        if status.HasField("behind_millis"):
            text = "How long ago the copy was last known to be as its leader."
            gauges.append(("replica_behind_seconds", text, status.behind_millis / 1000))
        if manager is not None:
            tables = manager.tables
            gauges += [
                (
                    "namesrv_live_brokers",
                    "Brokers in the live table, unconfirmed ones included.",
                    len(tables.broker_live_table),
                ),
                ("namesrv_topics", "Topics with a route.", len(tables.topic_queue_table)),
                ("namesrv_revision", "Revision of the last change.", manager.revision),
                ("namesrv_warm", "1 if unknown topics are NOT_FOUND, 0 while they are UNAVAILABLE.", manager.warm),
            ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=float(value))
        yield from share_metrics(self._shares)
