"""Runs a schedule of faults, or some: ``python -m tests.faults --seed 7 --profile short``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.nemesis import KINDS, OF_ROCKETMQ
from tests.faults.run import PROFILES, run_profile
from tests.support.rocketmq_programs.maven import missing


def main() -> int:
    """Runs, prints what was found, and returns 1 if something is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides everything; the next runs have the next numbers")
    parser.add_argument("--runs", type=int, default=1, help="how many runs")
    parser.add_argument("--profile", choices=PROFILES, default="short", help="how long, and how long faults last")
    parser.add_argument("--faults", nargs="+", choices=sorted(KINDS), help="only these kinds")
    parser.add_argument(
        "--rocketmq", action="store_true", help="with RocketMQ's own brokers, killed as well, where Java and Maven are"
    )
    options = parser.parse_args()
    if options.faults and options.rocketmq:
        parser.error("--faults names all kinds, also those of --rocketmq: leave that out")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of the fleet are ended, too
    folder = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    problem = missing() if options.rocketmq else None
    if problem is not None:
        sys.stdout.write(f"without RocketMQ's own brokers: {problem}\n")
    left_out = frozenset() if options.rocketmq and problem is None else OF_ROCKETMQ
    names = options.faults or sorted(KINDS.keys() - left_out)
    broken = False
    for seed in range(options.seed, options.seed + options.runs):
        is_sound, report = run_profile(folder / f"seed-{seed}", seed, options.profile, names)
        sys.stdout.write(report)
        broken |= not is_sound
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
