"""The pipeline is killed, or its disk fails, at each step of a batch; its history stays what the model says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.ingest import IngestError, ingest
from route_pipeline.log.protocol.route_log import RouteLog, files
from tests.support import failpoints
from tests.support.programs.processes import BIN, eventually
from tests.support.routes.expected_history import ExpectedHistory
from tests.support.routes.fleet_life import FleetLife, LivingNamesrv, serving_life
from tests.support.routes.route_history import versions_of
from tests.support.spark_session import spark
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

SEED = 77
BETWEEN_INGESTS_SECONDS = 120
STEPS = (
    "before open .0000*.part",  # the tasks have written the rows; no commit names them
    "half write .0000*.part",
    "before fsync .0000*.part",
    "before link 0000*.json",
    "after link 0000*.json",  # the batch is in the log, but the program does not know
    "after fsync-folder-of 0000*.json",
)
"""All that the driver does to make a batch part of the log; what tasks do besides is in MOMENTS."""
EVERY = int(os.environ.get("FAULTS_PIPELINE_EVERY", "6"))
"""Of how many steps one has a kill; each of them takes Spark's start. 1 for all."""
ERRORS = ("ENOSPC", "EIO")
FAILED = r"/_commits/\d+\.json cannot be written to: (No space left on device|Input/output error)$"
FIND_SECONDS = 240.0
"""By then an ingest has come to any of its steps, on a busy machine."""
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}


class Life:
    """Two name servers, what happens to them, and the log of it that there should be."""

    def __init__(self, store: RouteLog, stack: ExitStack) -> None:
        self.store = store
        self.clock = VirtualClock()
        self.namesrvs = [stack.enter_context(serving_life(name, self.clock)) for name in ("ns-a", "ns-b")]
        self.expected = ExpectedHistory()
        self._life = FleetLife(SEED, self.namesrvs, self.clock)

    def go_on(self) -> None:
        """Something happens; then the model is told of the next ingest. Not both name servers are lost."""
        self._life.pass_time(BETWEEN_INGESTS_SECONDS)
        if all(namesrv.lost for namesrv in self.namesrvs):
            self._life.end_outages()
        for namesrv in self.namesrvs:
            self.expected.ingest(namesrv, self.clock.wall_millis())

    def addresses(self) -> str:
        return ",".join(str(namesrv.endpoint) for namesrv in self.namesrvs)

    def ingest(self, spark: SparkSession) -> None:
        now = datetime.fromtimestamp(self.clock.wall_millis() / 1000, UTC)
        endpoints = [namesrv.endpoint for namesrv in self.namesrvs]
        ingest(spark, endpoints, self.store, OPTIONS, now=lambda: now)

    def check(self, spark: SparkSession) -> None:
        """The log's history is the model's, and no row of the log is there twice."""
        assert sorted(versions_of(spark, self.store), key=repr) == sorted(self.expected.ended(), key=repr)
        columns = ["namesrv", "epoch", "revision", "table_name", "key", "from_snapshot", "op", "after_revision"]
        rows = ds.dataset(files(self.store.url)).to_table(columns=columns).to_pylist()
        keys = [tuple(row.values()) for row in rows if row["table_name"] != "reads"]
        assert len(keys) == len(set(keys))


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(RouteLog.create(tmp_path / "log"), stack)


class Pipeline:
    """``route-pipeline ingest`` in a process group of its own."""

    def __init__(self, life: Life, faults: Path) -> None:
        options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
        self._said = faults.with_name("said")
        with self._said.open("w") as said:
            self._popen = subprocess.Popen(
                [BIN / "route-pipeline", "ingest", "--namesrv", life.addresses(), "--out", life.store.url, *options],
                start_new_session=True,
                stdout=said,
                stderr=said,
                env={**os.environ, **failpoints.environment(faults)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills all of it: Python, Java and Spark's workers."""
        with suppress(ProcessLookupError):  # they have all ended
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(FIND_SECONDS)

    def wait_for_crash(self) -> None:
        """Waits for its end, which must be by SIGKILL."""
        assert self._popen.wait(FIND_SECONDS) == -signal.SIGKILL, self._said.read_text()


@pytest.mark.timeout(1200)
def test_killed_at_its_own_steps_it_goes_on_where_it_was(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    for step in STEPS[::EVERY]:
        life.go_on()
        faults.write_text(f"{step} = crash\n")
        with Pipeline(life, faults) as pipeline:
            pipeline.wait_for_crash()
        life.ingest(spark)
    life.check(spark)


@pytest.mark.timeout(900)
def test_a_disk_that_fails_at_each_step_costs_a_batch_and_one_line_and_no_row(
    spark: SparkSession, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = tmp_path / "faults"
    failpoints.install(faults, monkeypatch.setattr)
    for number, step in enumerate(STEPS):
        life.go_on()
        faults.write_text(f"{step} = {ERRORS[number % len(ERRORS)]}\n")
        if step.startswith("after"):
            life.ingest(spark)  # the commit is there already: trying it again finds that
        else:
            with pytest.raises(IngestError, match=FAILED):
                life.ingest(spark)
        faults.unlink()
        life.ingest(spark)
    life.check(spark)


def rows_are_being_written(life: Life, before: int) -> bool:
    return data_files(life) > before


def the_batch_is_committed(life: Life, before: int) -> bool:
    return len(files(life.store.url)) > before


def data_files(life: Life) -> int:
    return len(life.store.store.files("data"))


MOMENTS: tuple[tuple[Callable[[Life, int], bool], Callable[[Life], int]], ...] = (
    (rows_are_being_written, data_files),
    (the_batch_is_committed, lambda life: len(files(life.store.url))),
)
"""What happens, seen from outside, and what it counts from."""


@pytest.mark.timeout(900)
def test_killed_with_its_whole_process_group_when_it_comes_to_a_step_it_goes_on_where_it_was(
    spark: SparkSession, life: Life, tmp_path: Path
) -> None:
    for moment, count in MOMENTS:
        life.go_on()
        before = count(life)
        with Pipeline(life, tmp_path / "no faults"):
            eventually(lambda moment=moment, before=before: moment(life, before), within_seconds=FIND_SECONDS)  # type: ignore[misc]
        life.ingest(spark)
    life.check(spark)


@pytest.mark.timeout(600)
def test_killed_while_it_reads_a_snapshot_it_reads_it_again(spark: SparkSession, life: Life, tmp_path: Path) -> None:
    reached, over = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert over.wait(FIND_SECONDS)

    life.go_on()
    for namesrv in life.namesrvs:
        namesrv.before_message = hold
    with Pipeline(life, tmp_path / "no faults"):
        assert reached.wait(FIND_SECONDS)
    over.set()
    assert files(life.store.url) == []
    life.ingest(spark)
    life.check(spark)


@pytest.mark.timeout(600)
def test_a_name_server_lost_in_the_middle_of_a_snapshot_fails_the_batch_and_nothing_of_it_stays(
    spark: SparkSession, life: Life
) -> None:
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
