"""Two name servers whose fleet lives by a seed, the log that ingests make of it, and the history that log must have."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from route_pipeline.log.ingest import ingest
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from tests.support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv
from tests.support.routes.route_history import versions_of
from tests.support.virtual_clock import VirtualClock

SEED = 77
BETWEEN_INGESTS_SECONDS = 120
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}


class Life:
    """Two name servers, what happens to them, and the log of it that there should be."""

    def __init__(self, store: RouteLog, stack: ExitStack) -> None:
        self.store = store
        self.clock = VirtualClock()
        self.namesrvs = [stack.enter_context(LivingNamesrv(name, self.clock)) for name in ("ns-a", "ns-b")]
        self.expected = ExpectedHistory()
        self._life = FleetLife(SEED, self.namesrvs, self.clock)

    def go_on(self, *, all_answer: bool = False) -> None:
        """Something happens; then the model is told of the next ingest. Not both name servers are lost."""
        self._life.pass_time(BETWEEN_INGESTS_SECONDS)
        if all_answer or all(namesrv.lost for namesrv in self.namesrvs):
            self._life.end_outages()
        for namesrv in self.namesrvs:
            self.expected.ingest(namesrv, self.clock.wall_millis())

    def addresses(self) -> str:
        return ",".join(str(namesrv.endpoint) for namesrv in self.namesrvs)

    def ingest(self, spark: SparkSession) -> None:
        now = datetime.fromtimestamp(self.clock.wall_millis() / 1000, UTC)
        endpoints = [namesrv.endpoint for namesrv in self.namesrvs]
        ingest(spark, endpoints, self.store, OPTIONS, now=lambda: now)

    def check(self, spark: SparkSession) -> None:
        """The log's history is the model's, and no row of the log is there twice."""
        assert sorted(versions_of(spark, self.store), key=repr) == sorted(self.expected.ended(), key=repr)
        columns = ["namesrv", "epoch", "revision", "table_name", "key", "from_snapshot", "op", "after_revision"]
        rows = read_changes(spark, self.store).where("table_name != 'reads'").select(*columns).collect()
        assert len(rows) == len(set(rows))
