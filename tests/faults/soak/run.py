"""A fleet for an hour or more at a modest rate, with random faults: ``python -m tests.faults.soak.run --minutes 60``.

What it recorded is in the folder; ``python -m tests.faults.soak.page FOLDER`` makes docs/soak.md of it.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from namesrv_api.v1 import route_service_pb2

from tests.faults.fleet.fleet import SERVERS
from tests.faults.nemesis import KINDS, OF_A_PIPELINE, OF_ROCKETMQ
from tests.faults.resources import cpu_seconds, sample
from tests.faults.run import Pace, Parts, Run
from tests.faults.schedule import schedule

PACE = Pace(lookups=1.0, operator=5.0, topics=5.0)
SPARED = frozenset({SERVERS[0]})
"""Never ended, so that its memory tells of all the time. It is stopped and cut off like the others."""
FAULT_SECONDS = (0.5, 3.0, 6.0, 15.0)
REST_SECONDS = (10.0, 30.0, 60.0)
SAMPLE_SECONDS = 10.0
TIMEOUT = 3.0
SOAKED = KINDS.keys() - OF_A_PIPELINE - OF_ROCKETMQ
"""Java takes more memory and time than all else together, and would be all that the plots show."""
MOST_ROUNDS = 10_000
"""More than fit into any time that is asked for."""


@contextmanager
def sampling(run: Run) -> Iterator[None]:
    """Records what processes hold and how late event loops are, again and again, while it lasts."""
    ending = threading.Event()

    def sample_all() -> None:
        while not ending.wait(SAMPLE_SECONDS):
            for name in run.fleet.processes:
                _sample(run, name)

    thread = threading.Thread(target=sample_all, name="samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(len(SERVERS) * TIMEOUT + TIMEOUT)


def _sample(run: Run, name: str) -> None:
    pid = run.fleet.pid(name)
    try:
        held = sample(pid)
    except (FileNotFoundError, KeyError, ProcessLookupError):
        return  # it has just been killed
    run.history.add("sample", name=name, phase="during", cpu_seconds=cpu_seconds(pid), **held)
    if name not in SERVERS:
        return
    try:
        with run.fleet.connect(name) as client:
            status = client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT)
    except grpc.RpcError:
        return  # it is stopped, or on its way down or up
    run.history.add("lag", server=name, millis=round(status.loop_lag_millis, 3))


def soak(folder: Path, seed: int, minutes: float) -> list[str]:
    """Runs; returns what is broken."""
    rounds = iter(schedule(seed, sorted(SOAKED), MOST_ROUNDS, FAULT_SECONDS, REST_SECONDS))
    with Run(folder, seed, PACE, Parts.needed_by(SOAKED), SPARED) as run:
        with run.traffic(), sampling(run):
            while run.history.now() < minutes * 60:
                run.inject(next(rounds))
        return run.finish()


def main() -> int:
    """Runs, and says what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak.run", description=__doc__)
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
    sys.stdout.write(f"the page: python -m tests.faults.soak.page {folder}\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
