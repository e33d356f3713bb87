"""Two name servers whose fleet lives by a seed, the log that ingests make of it, and the history that log must have.

As a program it appends once and kills itself at a step: ``python -m tests.faults.pipeline.life ADDRESSES LOG STEP``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from namesrv_common.endpoints import parse_endpoints
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions
from tests.support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv
from tests.support.routes.log_rows import die_at
from tests.support.routes.route_history import versions_of
from tests.support.virtual_clock import VirtualClock

SEED = 77
BETWEEN_INGESTS_SECONDS = 120
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}


class Life:
    """Two name servers, what happens to them, and the log of it that there should be."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self.place = place
        self.clock = VirtualClock()
        self.namesrvs = [stack.enter_context(LivingNamesrv(name, self.clock)) for name in ("ns-a", "ns-b")]
        self.expected = ExpectedHistory()
        self._life = FleetLife(SEED, self.namesrvs, self.clock)

    def go_on(self) -> None:
        """Something happens; then the model is notified of the next ingest. Not both name servers are lost."""
        self._life.pass_time(BETWEEN_INGESTS_SECONDS)
        if all(namesrv.lost for namesrv in self.namesrvs):
            self._life.end_outages()
        for namesrv in self.namesrvs:
            self.expected.ingest(namesrv, self.clock.wall_millis())

    def addresses(self) -> str:
        return ",".join(str(namesrv.endpoint) for namesrv in self.namesrvs)

    def batches(self) -> int:
        """Batches that are whole."""
        return RouteLog(self.place).batch + 1

    def ingest(self) -> None:
        log = RouteLog(self.place, now=lambda: datetime.fromtimestamp(self.clock.wall_millis() / 1000, UTC))
        Ingester(ingest_options(parse_endpoints(self.addresses()), OPTIONS), log).once()

    def stream(self, spark: SparkSession, checkpoint: Path) -> None:
        """The same by Spark."""
        options = {"endpoints": self.addresses(), "table": "changes", **OPTIONS}
        writer = spark.readStream.format("namesrv").options(**options).load().writeStream.format("namesrv_log")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start(self.place.url).awaitTermination()

    def check(self) -> None:
        """The log's history is the model's, and no row of the log is there twice."""
        assert sorted(versions_of(self.place), key=repr) == sorted(self.expected.ended(), key=repr)
        columns = "namesrv, epoch, revision, table_name, key, from_snapshot, op"
        with questions(self.place) as asked:
            twice = f"select {columns} from log where kind = 'changes' group by all having count(*) > 1"
            assert asked.ask(twice) == []


def main(addresses: str, url: str, step: str) -> None:
    """Appends, and kills itself."""
    die_at(step)
    Ingester(ingest_options(parse_endpoints(addresses), OPTIONS), RouteLog(Place(url))).once()


if __name__ == "__main__":
    main(*sys.argv[1:])
