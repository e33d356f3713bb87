"""RocketMQ's own protocol beside Apache's name server, on a quiet machine 8 minutes: ``python -m bench.remoting``.

The same client asks both over that protocol, in turn within each round, each on one core. Prints a table, and writes it
into a page, between two marks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.awake import processors_awake
from bench.figures import machine, machine_line, progress
from bench.page_block import REMOTING
from bench.peers.servers import JAVA, NAMESRV_REMOTING
from bench.report.results import Record
from bench.steps import Step, measure_steps, table_of

_ROUTE, _REGISTER = "GetTopicRoute", "RegisterBroker"
_BOTH = (NAMESRV_REMOTING, JAVA)
_WITH_AND_WITHOUT = ("native", "native+front")

STEPS = (
    Step("lookups", _ROUTE, _BOTH, seconds=3.0, java_warm_up=30.0),
    Step("lookups-20k-width-16", _ROUTE, _BOTH, seconds=3.0, java_warm_up=30.0),
    Step("capacity-20k-width-1", _ROUTE, _BOTH, seconds=3.0),
    Step("capacity-20k-width-16", _ROUTE, _BOTH, rounds=2, seconds=3.0),
    Step("connections-1", _ROUTE, _BOTH, rounds=2, seconds=3.0),
    Step("connections-1024", _ROUTE, _BOTH, rounds=2, seconds=3.0),
    Step("storm-idle", _ROUTE, _BOTH, rounds=2, seconds=3.0, java_warm_up=10.0),
    Step("storm", _ROUTE, _BOTH, rounds=2, seconds=3.0, java_warm_up=10.0),
    Step("register-10k", _REGISTER, _BOTH, rounds=2, seconds=3.0, java_warm_up=10.0),
    Step("register-20", _REGISTER, _BOTH, rounds=2, seconds=3.0, java_warm_up=10.0),
    Step("register-1", _REGISTER, _BOTH, rounds=2, seconds=3.0, java_warm_up=10.0),
    Step("lookups-100k-width-4", _ROUTE, _BOTH, rounds=1, java_warm_up=10.0),
    Step("lookups", _ROUTE, _WITH_AND_WITHOUT, seconds=3.0),
)


def lines_of(records: Sequence[Record]) -> Iterator[str]:
    """The lines of the block of the page: beside Java of the same round, and gRPC with and without the front."""
    yield f"{machine_line()}\n"
    yield from table_of(STEPS, records)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the file and the page."""
    names = list(dict.fromkeys(step.workload for step in STEPS))
    parser = argparse.ArgumentParser(prog="python -m bench.remoting", description="Measures RocketMQ's protocol.")
    parser.add_argument("--json", type=Path, help="file for every run, with the facts of the machine")
    parser.add_argument("--page", type=Path, help="page that gets the table, docs/performance.md for one")
    parser.add_argument("--seconds", type=float, help="for a trial: of each run, which then has one round")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables; default: %(default)s")
    parser.add_argument("--workload", action="append", choices=names, help="default: all")
    options = parser.parse_args(arguments)
    steps = [step for step in STEPS if options.workload is None or step.workload in options.workload]
    records: list[Record] = []
    try:
        with processors_awake():
            measure_steps(steps, records, options.seconds, options.scale)
    finally:
        block = REMOTING.of(lines_of(records))
        print(block)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine(), "records": records}) + "\n")
    if options.page:
        options.page.write_text(REMOTING.put_into(options.page.read_text(), block))
        progress(f"remoting: {options.page} has the table")


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    main()
