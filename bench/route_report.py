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
from route_pipeline.ingest import Ingester
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions
from route_pipeline.report_data import collect_charts, collect_report
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
        namesrvs = [stack.enter_context(LivingNamesrv(f"namesrv-{letter}", clock)) for letter in "abc"]
        endpoints = [namesrv.endpoint for namesrv in namesrvs]
        place = Place(str(Path(folder) / "log"))
        log = RouteLog(place, now=lambda: datetime.fromtimestamp(clock.wall_millis() / 1000, UTC))
        life = FleetLife(SEED, namesrvs, clock)
        for number in range(INGESTS):
            if number in {0, INGESTS - 1} or all(namesrv.lost for namesrv in namesrvs):
                life.end_outages()
            batches = Ingester(endpoints, log, {"onCompacted": "resync"}).once()
            sys.stderr.write(f"{log.now():%H:%M:%S}: {sum(batch.rows for batch in batches):,} rows\n")
            life.pass_time(SECONDS_BETWEEN)
        with questions(place) as asked:
            page = html_report(collect_report(asked), collect_charts(asked))
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    main()
