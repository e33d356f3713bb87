"""What one waits for: a small table in a Spark that is up, and a change until it is in the log."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds

from bench.figures import Sample
from bench.pipeline.sizes import Sizes, timed
from route_pipeline.log import files
from route_pipeline.session import QUICK_START, spark_session
from support.programs.processes import BIN, NamesrvProcess, eventually
from support.registrations import identity, registration

SMALL_TOPICS = 30
READS = 6


def small_read(_sizes: Sizes) -> Iterator[Sample]:
    """Batch reads of a small name server in a Spark that is up: the first, which starts Python workers, and others."""
    workload = f"{SMALL_TOPICS} topics of one broker, read by a Spark that is up"
    with spark_session("local[2]", QUICK_START) as spark:
        spark.range(1).count()
        with NamesrvProcess("--name", "ns-a") as namesrv, namesrv.connect() as client:
            topics = [f"Topic{number}" for number in range(SMALL_TOPICS)]
            client.registration.RegisterBroker(registration(topics, identity()), timeout=20)
            for number in range(READS):
                with timed() as seconds:
                    routes = spark.read.format("namesrv").option("endpoints", str(namesrv.endpoint)).load()
                    assert len(routes.collect()) == SMALL_TOPICS
                yield Sample(workload, "first read" if number == 0 else "read again", "s", seconds[0])


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
