"""What one waits for: a small table in a Spark that is up, and a change until it is in the log."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds

from bench.figures import Sample, progress
from bench.pipeline.first_read import SMALL_TOPICS, WAYS
from bench.pipeline.sizes import Sizes, timed
from route_pipeline.log import files
from tests.support.programs.processes import BIN, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

SPARK_SECONDS = 600
"""For one Spark, which takes ten; a machine that is busy otherwise has its time."""


def small_read(sizes: Sizes) -> Iterator[Sample]:
    """Batch reads of a small name server, each way by a fresh Spark each round."""
    silent = "--scan-not-active-broker-interval-millis", "0"  # a broker that is heard of once stays
    with NamesrvProcess("--name", "ns-a", *silent) as namesrv, namesrv.connect() as client:
        topics = [f"Topic{number}" for number in range(SMALL_TOPICS)]
        client.registration.RegisterBroker(registration(topics, identity()), timeout=20)
        for _ in range(sizes.rounds):
            for way in WAYS:
                progress(f"small-read: {way}")
                command = [sys.executable, "-m", "bench.pipeline.first_read", str(namesrv.endpoint), way]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=SPARK_SECONDS)
                for line in done.stdout.splitlines():
                    yield Sample(*json.loads(line))


def change_to_row(sizes: Sizes) -> Iterator[Sample]:
    """Seconds from a registration's answer to its row in the log, under ``follow --every 1``."""
    workload = "follow, a batch each second"
    waited: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder,
        NamesrvProcess("--name", "ns-a") as namesrv,
        namesrv.connect() as client,
    ):
        log = Path(folder) / "followed"
        with _following(["follow", "--namesrv", str(namesrv.endpoint), "--out", str(log), "--every", "1"]):
            eventually(lambda: list(log.glob("_commits/*.json")), within_seconds=180)
            for number in range(sizes.changes):
                request = registration([f"Late{number}"], identity(), counter=number + 1)
                client.registration.RegisterBroker(request, timeout=20)
                with timed() as seconds:
                    eventually(lambda topic=f"Late{number}": topic in _topics(log), within_seconds=60)  # type: ignore[misc]
                waited += seconds
                yield Sample(workload, "from a change to its row", "s", seconds[0])
    yield Sample(workload, "99 of 100 changes, up to", "s", statistics.quantiles(waited, n=100, method="inclusive")[98])


@contextmanager
def _following(arguments: list[str]) -> Iterator[None]:
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


def _topics(log: Path) -> set[str]:
    """Topics that have a row."""
    column = ds.dataset(files(log)).to_table(columns=["topic"]).column("topic")
    return set(column.to_pylist())
