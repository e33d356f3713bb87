"""A fleet for an hour or more at a modest rate, with random faults: ``python -m tests.faults.soak --minutes 60``."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.nemesis import KINDS, OF_A_PIPELINE, OF_ROCKETMQ
from tests.faults.run import Pace, Parts, Run
from tests.faults.schedule import schedule

PACE = Pace(lookups=1.0, operator=5.0, topics=5.0)
FAULT_SECONDS = (0.5, 3.0, 6.0, 15.0)
REST_SECONDS = (10.0, 30.0, 60.0)
SOAKED = KINDS.keys() - OF_A_PIPELINE - OF_ROCKETMQ
"""Java would take more memory and time than all else together."""
MOST_ROUNDS = 10_000
"""More than fit into any time that is asked for."""


def soak(folder: Path, seed: int, minutes: float) -> list[str]:
    """Runs; returns what is broken."""
    rounds = iter(schedule(seed, sorted(SOAKED), MOST_ROUNDS, FAULT_SECONDS, REST_SECONDS))
    with Run(folder, seed, PACE, Parts.needed_by(SOAKED)) as run:
        with run.traffic():
            while run.history.now() < minutes * 60:
                run.inject(next(rounds))
        return run.finish()


def main() -> int:
    """Runs, and says what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--folder", type=Path, help="where the history goes; by default a new temporary folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of the fleet are ended, too
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    sys.stdout.write(f"seed {options.seed}, {options.minutes:g} minutes, history in {folder}/history.jsonl\n")
    sys.stdout.flush()
    broken = soak(folder, options.seed, options.minutes)
    sys.stdout.write("".join(f"{line}\n" for line in broken) or "all invariants hold\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
