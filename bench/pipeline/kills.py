"""Kills the route pipeline at random while a name server changes 300 times a second, and counts what the log has.

::

    python -m bench.pipeline.kills --kills 20

``route-pipeline follow`` is killed with SIGKILL, its whole process group (Python, Java and Spark's workers), and
started again; at the end one ingest takes what is left. Each change takes one revision and has rows of its own, so
every revision after the first snapshot must be in the log, and every row once: for Spark, and for Arrow, which knows
nothing of Spark.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds

from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog, files
from route_pipeline.session import QUICK_START, spark_session
from tests.support.programs.processes import BIN, Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

CHANGES_PER_SECOND = 300
BROKERS = 50
MAX_START_SECONDS = 900.0
"""By then a follow has written its first batch: in seconds, and in minutes where ten others want the same cores."""

LONGEST_LIFE_SECONDS = 6.0
"""A follow is killed up to 6 s after its first batch; every fourth one is, up to 6 s after it was started."""

Key = tuple[object, ...]


def main() -> None:
    """Runs it and prints the counts; exit code 1 if anything is missing or there twice."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=9191)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-kills-") as folder,
        # Nothing expires: every change is one that this program makes.
        NamesrvProcess("--name", "ns-a", "--scan-not-active-broker-interval-millis", "0") as namesrv,
        namesrv.connect() as client,
    ):
        log = Path(folder) / "log"
        to = ["--namesrv", str(namesrv.endpoint), "--out", str(log)]
        with changing(client) as made:
            for number in range(arguments.kills):
                wait_for = 0 if number % 4 == 3 else batches(log) + 1
                follow_and_kill(["follow", *to, "--every", "1"], log, wait_for, chance)
                print(f"kill {number + 1}: {batches(log)} batches, {made():,} changes so far", flush=True)
        ingest: list[str | Path] = [BIN / "route-pipeline", "ingest", *to]
        subprocess.run(ingest, check=True, stdout=subprocess.DEVNULL, timeout=MAX_START_SECONDS)
        last = client.snapshot()[0].header.revision
        raise SystemExit(count(log, last, arguments.kills))


def batches(log: Path) -> int:
    """Batches that are whole."""
    return sum(1 for _ in log.glob("_commits/*.json"))


def follow_and_kill(arguments: list[str], log: Path, wait_for: int, chance: random.Random) -> None:
    """Lets the pipeline live until it has written so many batches and a while longer, then kills all of it at once."""
    process = subprocess.Popen(
        [BIN / "route-pipeline", *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: batches(log), lambda count: count >= wait_for, MAX_START_SECONDS)
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_SECONDS))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@contextmanager
def changing(client: Client) -> Iterator[Callable[[], int]]:
    """Registers something new 300 times a second until the block is left."""
    over = threading.Event()
    made = itertools.count()
    latest = [0]

    def change() -> None:
        next_at = time.monotonic()
        while not over.is_set():
            number = latest[0] = next(made)
            broker = identity(f"127.0.0.1:{10_000 + number % BROKERS}", name=f"broker-{number % BROKERS}")
            request = registration([f"T{number % 997}", f"T{number % 89}-x"], broker, counter=number)
            client.registration.RegisterBroker(request, timeout=20)
            next_at += 1 / CHANGES_PER_SECOND
            over.wait(max(0.0, next_at - time.monotonic()))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield lambda: latest[0]
    finally:
        over.set()
        thread.join(30)


def count(log: Path, last: int, kills: int) -> int:
    """Prints what the log has, by either reader; returns how many of them found something wrong."""
    columns = ["namesrv", "epoch", "revision", "table_name", "key", "op", "from_snapshot"]
    store = RouteLog.open(log)
    print(f"{kills} kills, {batches(log)} batches, last revision {last:,}")
    with spark_session("local[2]", QUICK_START) as spark:
        by_spark = [tuple(row) for row in read_changes(spark, store).select(*columns).collect()]
    table = ds.dataset(files(store.url)).to_table(columns=columns)
    by_arrow = [tuple(row.values()) for row in table.to_pylist()]
    return sum(_wrong(name, rows, last) for name, rows in (("Spark", by_spark), ("Arrow", by_arrow)))


def _wrong(name: str, rows: Iterable[Key], last: int) -> bool:
    """Whether a reader misses a revision or has a row twice. Reads say what was read, not what changed."""
    counted = Counter(row for row in rows if row[3] != "reads")
    first = min(int(str(row[2])) for row in counted if row[6])
    revisions = {row[2] for row in counted if not row[6]}
    missing = [revision for revision in range(first + 1, last + 1) if revision not in revisions]
    twice = sum(1 for times in counted.values() if times > 1)
    print(
        f"{name}: {sum(counted.values()):,} rows, revisions {first + 1:,} to {last:,}: "
        f"{len(missing)} missing, {twice} rows more than once"
    )
    return bool(missing or twice)


if __name__ == "__main__":
    main()
