"""This name server beside others, with the same load: ``python -m bench.peers``.

Every server is measured in turn within each round, so that ratios stand on the same minute of the same machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.awake import processors_awake
from bench.figures import machine, machine_line, progress, table
from bench.load import open_many_files
from bench.peers.measure import Measurement, Record, measure
from bench.peers.recipes import Missing, RecipeFailed
from bench.peers.servers import NULL, NULL_REMOTING, all_servers, askable_servers, described
from bench.peers.summary import figures_of, ratios_of
from bench.peers.warm import LOADED_SECONDS
from bench.peers.workloads import Workload, all_workloads

_QUICK = ("lookups", "capacity-20k-width-1")
_QUICK_ROUNDS = 2
_NULLS = (NULL, NULL_REMOTING)
_CEILING = "lookups"
"""The workload that shows what the load generator can do at most."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, writes the JSON file."""
    options = _parser().parse_args(arguments)
    open_many_files()  # for 1,024 connections and more
    known = {workload.name: workload for workload in all_workloads(options.scale)}
    names = options.workload or (_QUICK if options.quick else known)
    records = list[Record]()
    with processors_awake():
        for workload in (known[name] for name in names):
            records += _measured(workload, options)
            if options.json:
                _write(options.json, options, records)
    print(machine_line())
    figures = figures_of(records)
    print(table([*figures, *ratios_of(figures)]))


def _measured(workload: Workload, options: argparse.Namespace) -> list[Record]:
    measurement = Measurement(
        [workload],
        options.server or [name for name in all_servers() if workload.name == _CEILING or name not in _NULLS],
        _QUICK_ROUNDS if options.quick else options.rounds,
        options.seconds,
        options.warm_up,
        pin=not options.unpinned,
    )
    try:
        return measure(measurement)
    except (Missing, RecipeFailed) as error:
        raise SystemExit(f"the load generator cannot run: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Measures name servers side by side.")
    names = [workload.name for workload in all_workloads()]
    parser.add_argument("--workload", action="append", choices=names, help="may be given again; default: all")
    parser.add_argument("--server", action="append", choices=askable_servers(), help="may be given again; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run; default: %(default)s")
    parser.add_argument(
        "--warm-up", type=float, default=LOADED_SECONDS, help="longest one of each server; default: %(default)s s"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(_QUICK)}, {_QUICK_ROUNDS} rounds")
    parser.add_argument("--unpinned", action="store_true", help="servers and load share all cores")
    parser.add_argument("--json", type=Path, help="file for every run, with the facts of the machine")
    return parser


def _write(path: Path, options: argparse.Namespace, records: list[Record]) -> None:
    """Writes the runs so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "machine": machine(),
        "servers": {
            name: described(name) for name in askable_servers() if any(one["server"] == name for one in records)
        },
        "options": {name: value for name, value in vars(options).items() if name != "json"},
    }
    path.write_text(json.dumps({**facts, "records": records}) + "\n")
    progress(f"peers: {path} has {len(records)} runs")


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    main()
