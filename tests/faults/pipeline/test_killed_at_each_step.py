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
from tests.faults.pipeline.life import OPTIONS, Life
from tests.support.programs.pipeline_process import PipelineProcess
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
FIND_SECONDS = 120.0
"""By then an ingest has come to any of its steps, on a busy machine."""


@pytest.fixture(params=["threads", "spark"])
def front(request: pytest.FixtureRequest) -> str:
    """Who continues after each kill."""
    return str(request.param)


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(Place(str(tmp_path / "log")), stack)


def kill_at(life: Life, step: str) -> None:
    """Kills an ingest next to its commit."""
    command = [sys.executable, "-m", "tests.faults.pipeline.life", life.addresses(), life.place.url, step]
    done = subprocess.run(command, cwd=ROOT, timeout=FIND_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL


def kill_in_a_snapshot(life: Life, said: Path) -> None:
    """Kills the program while a name server waits in the middle of its answer."""
    reached, over = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert over.wait(FIND_SECONDS)

    for namesrv in life.namesrvs:
        namesrv.before_message = hold
    options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
    arguments = ("ingest", "--namesrv", life.addresses(), "--out", life.place.url, *options)
    with PipelineProcess(said, *arguments):
        assert reached.wait(FIND_SECONDS), said.read_text()
    for namesrv in life.namesrvs:
        namesrv.before_message = lambda: None
    over.set()


def test_killed_at_any_step_it_goes_on_where_it_was(
    spark: SparkSession, life: Life, front: str, tmp_path: Path
) -> None:
    for number, step in enumerate(("in a snapshot", "before the commit", "after the commit", "before the commit")):
        life.go_on()
        before = life.batches()
        if step == "in a snapshot":
            kill_in_a_snapshot(life, tmp_path / "said")
        else:
            kill_at(life, step)
        assert life.batches() == before + (step == "after the commit")
        if front == "threads":
            life.ingest()
        elif step != "after the commit":  # else Spark has nothing to append, and would begin with a snapshot
            life.stream(spark, tmp_path / f"checkpoint {number}")
    if front == "threads":
        life.check()
    else:
        assert life.batches() == 4
