"""Runs a schedule of faults, or some: ``python -m tools.faults --seed 7 --profile short``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from tools.faults.fleet.fleet import REPLICAS, SERVERS
from tools.faults.fleet.pipeline import PIPELINE
from tools.faults.nemesis import AGENTS, CLIENTS, KINDS, OF_A_PIPELINE, OF_A_PROXY
from tools.faults.network.namespaces import ENTERED, Hosts
from tools.faults.profiles import PROFILES, run_profile


def main() -> int:
    """Runs, prints what was found, and returns 1 if something is broken."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides everything; the next runs have the next numbers")
    parser.add_argument("--runs", type=int, default=1, help="how many runs")
    parser.add_argument("--profile", choices=PROFILES, default="short", help="how long, and how long faults last")
    parser.add_argument("--faults", nargs="+", choices=sorted(KINDS), help="only these kinds")
    parser.add_argument("--rounds", type=int, help="how many rounds of faults in place of the profile's")
    parser.add_argument("--folder", type=Path, help="where histories are kept; by default a new temporary folder")
    parser.add_argument("--hosts", action="store_true", help="in network namespaces, not behind a proxy; needs root")
    parser.add_argument(
        "--pipeline", action="store_true", help="with the pipeline, killed as well; needs Java for Spark"
    )
    options = parser.parse_args()
    if options.hosts and ENTERED not in os.environ:
        with Hosts([*SERVERS, *AGENTS, *CLIENTS, *REPLICAS, PIPELINE]) as hosts:
            return hosts.run_inside([sys.executable, "-m", "tools.faults", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of the fleet are ended, too
    folder = options.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    left_out = (OF_A_PROXY if options.hosts else frozenset()) | (frozenset() if options.pipeline else OF_A_PIPELINE)
    names = options.faults or sorted(KINDS.keys() - left_out)
    broken = False
    for seed in range(options.seed, options.seed + options.runs):
        outcome = run_profile(folder / f"seed-{seed}", seed, options.profile, names, options.rounds)
        sys.stdout.write(outcome.report())
        broken |= bool(outcome.violations)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
