"""The pipeline is killed at steps of a batch; its history stays what the model says."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.ingest import IngestError
from route_pipeline.log.protocol.route_log import RouteLog, files
from tests.faults.pipeline.life import OPTIONS, Life
from tests.support import failpoints
from tests.support.programs.pipeline_process import PipelineProcess
from tests.support.programs.processes import eventually
from tests.support.routes.fleet_life import LivingNamesrv
from tests.support.spark_session import spark

pytestmark = pytest.mark.spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

STEPS = (
    "before open .0000*.part",  # the tasks have written the rows; no commit names them
    "half write .0000*.part",
    "before fsync .0000*.part",
    "before link 0000*.json",
    "after link 0000*.json",  # the batch is in the log, but the program does not know
    "after fsync-folder-of 0000*.json",
)
"""All that the driver does to make a batch part of the log."""
SAMPLED = min(9, int(os.environ.get("FAULTS_PIPELINE_KILLS", "3")))
"""Kills, by chance; 9 for all. Each of them takes Spark's start."""
FIND_SECONDS = 240.0
"""By then an ingest has come to any of its steps, on a busy machine."""


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(RouteLog.create(tmp_path / "log"), stack)


Kill = Callable[[Life, Path], None]
"""Starts an ingest and kills it at a step."""


def ingesting(life: Life, faults: Path) -> PipelineProcess:
    """Starts an ingest with failpoints."""
    options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
    arguments = ("ingest", "--namesrv", life.addresses(), "--out", life.store.url, *options)
    return PipelineProcess(faults.with_name("said"), *arguments, environment=failpoints.environment(faults))


def kill_at(step: str) -> Kill:
    """Kills the driver at a failpoint."""

    def kill(life: Life, faults: Path) -> None:
        faults.write_text(f"{step} = crash\n")
        with ingesting(life, faults) as pipeline:
            assert pipeline.wait(FIND_SECONDS) == -signal.SIGKILL, faults.with_name("said").read_text()
        faults.unlink()

    return kill


def kill_once_there_are_more(count: Callable[[Life], int]) -> Kill:
    """Kills the whole process group as soon as more is there, seen from outside."""

    def kill(life: Life, faults: Path) -> None:
        before = count(life)
        with ingesting(life, faults):
            eventually(lambda: count(life) > before, within_seconds=FIND_SECONDS)

    return kill


def kill_in_a_snapshot(life: Life, faults: Path) -> None:
    """Kills the whole process group while a name server waits in the middle of its answer."""
    reached, over = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert over.wait(FIND_SECONDS)

    for namesrv in life.namesrvs:
        namesrv.before_message = hold
    before = len(files(life.store.url))
    with ingesting(life, faults):
        assert reached.wait(FIND_SECONDS)
    for namesrv in life.namesrvs:
        namesrv.before_message = lambda: None
    over.set()
    assert len(files(life.store.url)) == before


KILLS: dict[str, Kill] = {
    **{step: kill_at(step) for step in STEPS},
    "rows are being written": kill_once_there_are_more(lambda life: len(life.store.store.files("data"))),
    "the batch is committed": kill_once_there_are_more(lambda life: len(files(life.store.url))),
    "a snapshot is being read": kill_in_a_snapshot,
}


@pytest.mark.timeout(300 * SAMPLED)
def test_killed_at_any_step_it_goes_on_where_it_was(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed).sample(list(KILLS), SAMPLED)
    for step in sorted(chosen, key=lambda step: KILLS[step] is not kill_in_a_snapshot):  # the first batch reads one
        print(step)
        life.go_on()
        KILLS[step](life, tmp_path / "faults")
        life.ingest(spark)
    life.check(spark)


@pytest.mark.timeout(600)
def test_a_name_server_lost_in_a_snapshot_leaves_nothing_of_the_batch(spark: SparkSession, life: Life) -> None:
    life.go_on()
    lost = life.namesrvs[1]
    lost.before_message = lambda: vanish(lost)
    with pytest.raises(IngestError, match=rf"^name server {re.escape(str(lost.endpoint))}: DEADLINE_EXCEEDED"):
        life.ingest(spark)
    assert files(life.store.url) == []
    lost.before_message = lambda: None
    lost.lost = False
    life.ingest(spark)
    life.check(spark)


def vanish(namesrv: LivingNamesrv) -> None:
    namesrv.lost = True
