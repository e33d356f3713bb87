"""The pipeline is killed at steps of a batch, by threads and by Spark; its history stays what the model says."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.programs.processes import PipelineProcess
from tests.support.routes.fleet_life import OPTIONS, LoggedLife
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
SEED = 77
BETWEEN_INGESTS_SECONDS = 120
FIND_SECONDS = 120.0
"""By then an ingest has come to any of its steps, on a busy machine."""


@pytest.fixture(params=["threads", "spark"])
def front(request: pytest.FixtureRequest) -> str:
    """Who continues after each kill."""
    return str(request.param)


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[LoggedLife]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield LoggedLife(Place(str(tmp_path / "log")), stack, SEED, "ns-a", "ns-b")


def addresses(life: LoggedLife) -> str:
    return ",".join(str(namesrv.endpoint) for namesrv in life.namesrvs)


def kill_at(life: LoggedLife, step: str) -> None:
    """Kills an ingest next to its commit."""
    command = [sys.executable, "-m", "tests.faults.pipeline.killed_ingest", addresses(life), life.place.url, step]
    done = subprocess.run(command, cwd=ROOT, timeout=FIND_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL


def kill_in_a_snapshot(life: LoggedLife, said: Path) -> None:
    """Kills the program while a name server waits in the middle of its answer."""
    reached, over = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert over.wait(FIND_SECONDS)

    for namesrv in life.namesrvs:
        namesrv.before_message = hold
    options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
    arguments = ("ingest", "--namesrv", addresses(life), "--out", life.place.url, *options)
    with PipelineProcess(said, *arguments):
        assert reached.wait(FIND_SECONDS), said.read_text()
    for namesrv in life.namesrvs:
        namesrv.before_message = lambda: None
    over.set()


def stream(spark: SparkSession, life: LoggedLife, checkpoint: Path) -> None:
    """Appends what has happened by Spark."""
    options = {"endpoints": addresses(life), "table": "changes", **OPTIONS}
    writer = spark.readStream.format("namesrv").options(**options).load().writeStream.format("namesrv_log")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(life.place.url).awaitTermination()


def test_killed_at_any_step_it_goes_on_where_it_was(
    spark: SparkSession, life: LoggedLife, front: str, tmp_path: Path
) -> None:
    for number, step in enumerate(("in a snapshot", "before the commit", "after the commit", "before the commit")):
        life.go_on(BETWEEN_INGESTS_SECONDS)
        before = RouteLog(life.place).batch
        if step == "in a snapshot":
            kill_in_a_snapshot(life, tmp_path / "said")
        else:
            kill_at(life, step)
        assert RouteLog(life.place).batch == before + (step == "after the commit")
        if front == "threads":
            life.ingest(life.open_log())
        elif step != "after the commit":  # else Spark has nothing to append, and would begin with a snapshot
            stream(spark, life, tmp_path / f"checkpoint {number}")
    if front == "threads":
        life.check()
    else:
        assert RouteLog(life.place).batch == 3
