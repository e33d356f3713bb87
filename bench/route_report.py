"""Writes .demo/route-report.html: the pipeline's report of a simulated fleet in one hour.

The fleet runs on a virtual clock, with deploys, drains, crashes, and lost and restarted name servers. The same seed
makes the same hour. Run it with ``python -m bench.route_report``.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from route_pipeline.html_report import html_report
from route_pipeline.log.history import history
from route_pipeline.log.ingest import ingest
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.queries import latest_state
from route_pipeline.report_data import collect_report
from route_pipeline.session import QUICK_START, spark_session
from tests.support.routes.fleet_life import FleetLife, LivingNamesrv
from tests.support.virtual_clock import VirtualClock

SEED = 9191
INGESTS = 12
SECONDS_BETWEEN = 300
PAGE = Path(".demo", "route-report.html")


def main() -> None:
    """Writes the page."""
    clock = VirtualClock()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="route-report-"))
        spark = stack.enter_context(spark_session("local[2]", QUICK_START))
        namesrvs = [stack.enter_context(LivingNamesrv(f"namesrv-{letter}", clock)) for letter in "abc"]
        endpoints = [namesrv.endpoint for namesrv in namesrvs]
        store = RouteLog.create(Path(folder) / "log")
        life = FleetLife(SEED, namesrvs, clock)
        for number in range(INGESTS):
            if number in {0, INGESTS - 1} or all(namesrv.lost for namesrv in namesrvs):
                life.end_outages()
            now = datetime.fromtimestamp(clock.wall_millis() / 1000, UTC)
            result = ingest(spark, endpoints, store, {"onCompacted": "resync"}, now=lambda at=now: at)  # type: ignore[misc]
            sys.stderr.write(f"{now:%H:%M:%S}: {result.rows:,} rows\n")
            life.pass_time(SECONDS_BETWEEN)
        changes = read_changes(spark, store)
        versions = history(changes).cache()
        latest = latest_state(store.state(), changes, versions)
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(html_report(latest, collect_report(changes, versions)), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    main()
