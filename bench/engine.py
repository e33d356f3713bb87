"""The native engine's figures in one go, on a quiet machine below 12 minutes: ``python -m bench.engine``.

Prints a table, and writes it into a page, between two marks. ``bench.peers`` and ``bench.watchers`` measure; this says
what, and compares runs of the same round.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import watchers
from bench.awake import processors_awake
from bench.figures import Figure, machine, machine_line, progress, shown, summarise
from bench.page_block import ENGINE
from bench.peers.servers import JAVA, NULL, TLS
from bench.report.results import Record
from bench.steps import Step, measure_steps, table_of

NATIVE = "native"
_PAGE = Path("docs/performance.md")
_WATCHED = watchers.Scale((1_000, 10_000), changes=10, topics=1_000, quiet_seconds=0.1)
_TOLD = "one topic changes: told, p99"
_MEMORY = "resident memory of the server, each"


_ROUTE, _HEARTBEAT, _QUERY = "GetTopicRoute", "BrokerHeartbeat", "QueryDataVersion"
_LOOKUPS = (NATIVE, NATIVE + TLS)

_STORM = tuple(
    Step(workload, _ROUTE, _LOOKUPS, rounds=1, seconds=3.0) for workload in ("storm-idle", "storm", "storm-changed")
)
"""They take turns: their latencies are compared, and what the machine adds to them changes within minutes."""

STEPS = (
    Step(
        "lookups",
        _ROUTE,
        (*_LOOKUPS, JAVA, NULL, "native+half-cache", "native+no-cache"),
        seconds=3.0,
        java_warm_up=40.0,
    ),
    Step("connections-1", _ROUTE, _LOOKUPS, rounds=2, seconds=3.0),
    Step("connections-256", _ROUTE, _LOOKUPS, rounds=2, seconds=3.0),
    Step("connections-1024", _ROUTE, _LOOKUPS, rounds=2, seconds=3.0),
    Step("capacity-100k-width-16", _ROUTE, (NATIVE, JAVA), rounds=2),
    Step("heartbeats", _HEARTBEAT, (NATIVE, JAVA)),
    Step("versions", _QUERY, (NATIVE, JAVA)),
    *3 * _STORM,
    Step("lookups", _ROUTE, (NATIVE, "native+2-threads"), pin=False),
)


class Results(NamedTuple):
    """Everything that was measured so far."""

    records: list[Record]
    told: list[Figure]
    """From ``bench.watchers``."""


def measure_all(results: Results, seconds: float | None, scale: float) -> None:
    """Runs all steps, then the watchers.

    Args:
        results: Get what was measured, step by step: a fault at the end must not cost what was before it.
        seconds: Of each run, in one round; None: as the steps say.
        scale: Size of the tables.
    """
    measure_steps(STEPS, results.records, seconds, scale)
    told = watchers.measure(_WATCHED if seconds is None else watchers.tiny(50), _LOOKUPS, 1)
    results.told.extend(summarise(told))


def lines_of(results: Results) -> Iterator[str]:
    """The lines of the block of the page."""
    yield f"{machine_line()}\n"
    yield from table_of(STEPS, results.records)
    yield "\nChanges told to watchers, and what an idle watch takes:\n"
    yield "| watchers | figure | measured |"
    yield "| --- | --- | --- |"
    for figure in results.told:
        if figure.name in {_TOLD, _MEMORY, "one topic changes: server CPU, each watcher"}:
            yield f"| {figure.workload} | {figure.name} | {shown(figure.median)} {figure.unit} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the file and the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description="Measures the native engine.")
    parser.add_argument("--json", type=Path, help="file for every run, with the facts of the machine")
    parser.add_argument("--page", type=Path, help=f"page that gets the table, {_PAGE} for one")
    parser.add_argument("--seconds", type=float, help="for a trial: of each run, which then has one round")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables; default: %(default)s")
    options = parser.parse_args(arguments)
    results = Results([], [])
    try:
        with processors_awake():
            measure_all(results, options.seconds, options.scale)
    finally:
        block = ENGINE.of(lines_of(results))
        print(block)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        told = [figure._asdict() for figure in results.told]
        facts = {"machine": machine(), "records": results.records, "watchers": told}
        options.json.write_text(json.dumps(facts) + "\n")
    if options.page:
        options.page.write_text(ENGINE.put_into(options.page.read_text(), block))
        progress(f"engine: {options.page} has the table")


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    main()
