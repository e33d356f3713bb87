"""The route pipeline against real name servers: rows per second, memory, starts, questions, how late a change is.

::

    python -m bench.pipeline --json pipeline.json     # everything, half an hour
    python -m bench.pipeline --only small-read start  # some of it
    python -m bench.pipeline --quick                  # smaller logs, one round: three minutes or less for each name

Name servers and the S3 server run on the same cores. What they hold is there before anything is measured. The S3 server
is moto's, which is written in Python; ``VERSITYGW=path/to/versitygw`` takes a real one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bench.figures import Sample, machine_line, progress, summarise, table, write_json
from bench.pipeline.sizes import QUICK, Sizes
from bench.pipeline.workloads import WORKLOADS

WORKLOAD_SECONDS = 7_200


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one round, smaller logs")
    parser.add_argument("--rows", type=int, nargs="+", help="rows of bulk-posix")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--batches", type=int, help="of the logs of operations-posix and operations-s3")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    given = {name: getattr(arguments, name) for name in ("rows", "rounds", "batches")}
    sizes = replace(QUICK if arguments.quick else Sizes(), **{name: one for name, one in given.items() if one})
    samples: list[Sample] = []
    for name in arguments.only:
        progress(f"== {name}")
        samples += samples_of(name, sizes)
        if arguments.json and samples:  # now: a workload that fails costs no other one its figures
            write_json(arguments.json, summarise(samples), sizes=asdict(sizes))
    if not samples:
        raise SystemExit("nothing was measured")
    print(machine_line())
    print(table(summarise(samples)))


def samples_of(name: str, sizes: Sizes) -> list[Sample]:
    """Runs a workload in a process of its own; its samples, or those of it up to where it failed."""
    command = [sys.executable, "-m", "bench.pipeline.workloads", name, json.dumps(asdict(sizes))]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=WORKLOAD_SECONDS)
    if done.returncode:
        progress(f"{name} ended early, with exit code {done.returncode}: its figures so far count")
    return [Sample(*json.loads(line)) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main()
