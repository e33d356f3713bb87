"""The route pipeline against a real name server: rows per second into Parquet, start-up, memory, how late a change is.

::

    python -m bench.pipeline --rows 1000000 1600000 10000000 --json pipeline.json

The name server runs on the same cores. Its tables are filled through registrations before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds

from bench.figures import Sample, machine_line, progress, summarise, table, write_json
from bench.workload import Profile
from route_pipeline.log import files
from support.programs.processes import BIN, Client, NamesrvProcess, eventually
from support.registrations import identity, registration

BROKERS = 1_000
TOPICS = 100_000
ROUND_SECONDS = 1_800
"""A round of ten million rows takes a minute; a machine that is busy otherwise has its time."""
LATE_CHANGES = 10
"""Changes whose way into the log is timed."""

_REGISTER = "/namesrv_api.v1.RegistrationService/RegisterBroker"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 1_600_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    samples: list[Sample] = []
    for rows in arguments.rows:
        samples += bulk(rows, arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder:
        samples += latency(Path(folder) / "followed")
    figures = summarise(samples)
    print(machine_line())
    print(table(figures))
    if arguments.json:
        write_json(arguments.json, figures, rows=arguments.rows, rounds=arguments.rounds)


def bulk(rows: int, rounds: int) -> Iterator[Sample]:
    """A snapshot of so many queue rows, as a table and as the first ingest of a log, by a fresh Spark each round."""
    profile = Profile(TOPICS, BROKERS, max(1, rows // TOPICS))
    workload = f"{profile.name}: {profile.topics * profile.width:,} queue rows"
    with NamesrvProcess("--name", "ns-a") as namesrv, namesrv.connect() as client:
        progress(f"filling a name server with {profile.name}")
        fill(client, profile)
        for number in range(rounds):
            progress(f"{workload}: round {number + 1}")
            command = [sys.executable, "-m", "bench.pipeline.run", str(namesrv.endpoint), "--workload", workload]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=ROUND_SECONDS)
            if done.returncode:
                progress(f"the round ended early, with exit code {done.returncode}: its figures so far count")
            for line in done.stdout.splitlines():
                yield Sample(*json.loads(line))


def latency(log: Path) -> Iterator[Sample]:
    """Seconds from a registration's answer to its row in the log, under ``follow --every 1``."""
    with NamesrvProcess("--name", "ns-a") as namesrv, namesrv.connect() as client:
        arguments = ["follow", "--namesrv", str(namesrv.endpoint), "--out", str(log), "--every", "1"]
        with following(arguments):
            eventually(lambda: list(log.glob("_commits/*.json")), within_seconds=180)
            for number in range(LATE_CHANGES):
                request = registration([f"Late{number}"], identity(), counter=number + 1)
                client.registration.RegisterBroker(request, timeout=20)
                with timed() as seconds:
                    eventually(lambda topic=f"Late{number}": topic in topics(log), within_seconds=60)  # type: ignore[misc]
                yield Sample("follow, a batch each second", "from a change to its row", "s", seconds[0])


@contextmanager
def following(arguments: list[str]) -> Iterator[None]:
    """Runs the program in a process group of its own until the block is left."""
    process = subprocess.Popen([BIN / "route-pipeline", *arguments], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def topics(log: Path) -> set[str]:
    """Topics that have a row."""
    column = ds.dataset(files(log)).to_table(columns=["topic"]).column("topic")
    return set(column.to_pylist())


def fill(client: Client, profile: Profile) -> None:
    """Registers all brokers of a profile."""
    register = client.connection.unary_unary(_REGISTER, None, None)
    for request in profile.registrations():
        register(request, timeout=60)


@contextmanager
def timed() -> Iterator[list[float]]:
    """Puts the seconds of the block into the list."""
    seconds: list[float] = []
    began = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - began)


if __name__ == "__main__":
    main()
