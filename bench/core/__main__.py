"""Costs of the route tables without gRPC: ``python -m bench.core``.

Every round of every workload runs in a fresh process, so that memory and garbage collection start alike.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.core.changes import expiry, large_registrations, registrations, static_topic
from bench.core.sizes import Sizes, profile_of, tiny
from bench.core.tables import tables
from bench.figures import Sample, machine_line, progress, summarise, table, write_json


def measure(sizes: Sizes, rounds: int, *, fresh_processes: bool = True, only_tables: bool = False) -> list[Sample]:
    """Runs the workloads in rounds, so that a slow minute of the machine touches all of them alike."""
    others = () if only_tables else (registrations, large_registrations, static_topic, expiry)
    workloads: list[tuple[Callable[..., list[Sample]], tuple[Any, ...]]] = [
        *((workload, (sizes,)) for workload in others),
        *((tables, (sizes, profile)) for profile in sizes.profiles),
    ]
    samples: list[Sample] = []
    for number, (workload, arguments) in itertools.product(range(1, rounds + 1), workloads):
        progress(f"core: round {number} of {rounds}, {workload.__name__}")
        if fresh_processes:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                samples += process.submit(workload, *arguments).result()
        else:
            samples += workload(*arguments)
    return samples


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description="Measures the route tables without gRPC.")
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--topics", type=int, help="for a trial: tiny tables with so many topics, in this process")
    parser.add_argument(
        "--tables", type=profile_of, help="only a table of TOPICSxBROKERSxWIDTH, such as 1000000x10000x1"
    )
    options = parser.parse_args(arguments)
    sizes = tiny(options.topics) if options.topics else Sizes()
    if options.tables:
        sizes = sizes._replace(profiles=(options.tables,))
    figures = summarise(
        measure(sizes, options.rounds, fresh_processes=not options.topics, only_tables=options.tables is not None)
    )
    print(machine_line())
    place = "this process" if options.topics else "a fresh process each"
    print(f"Route tables without gRPC: {options.rounds} rounds, {place}.")
    print(table(figures))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds)


if __name__ == "__main__":
    main()
