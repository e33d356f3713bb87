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

from groundwork.files import disk
from groundwork.files.failpoints import VARIABLE, Failpoints
from route_pipeline.log.ingest import IngestError, ingest
from route_pipeline.log.store import RouteStore
from support.processes import BIN, eventually
from support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv, serving_life
from support.routes.route_history import versions_of
from support.spark_session import spark
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

SEED = 77
BETWEEN_INGESTS_SECONDS = 120
STEPS = (
    "before rename batch_id?*",  # the rows are written and checked, nothing is at its place
    "after rename batch_id?*",  # the rows are at their place, the batch has no summary
    "before open _batch_id?*.parquet.part",
    "half write _batch_id?*.parquet.part",
    "before fsync _batch_id?*.parquet.part",
    "before rename batch_id?*.parquet",
    "after rename batch_id?*.parquet",  # the batch is whole, but Spark does not know
)
"""All that the driver does to files of its own; what Spark does besides is in MOMENTS. A pattern cannot have an =."""
EVERY = int(os.environ.get("FAULTS_PIPELINE_EVERY", "6"))
"""Of how many steps one has a kill; each of them takes Spark's start. 1 for all."""
ERRORS = ("ENOSPC", "EIO")
FIND_SECONDS = 240.0
"""By then an ingest has come to any of its steps, on a busy machine."""
OPTIONS = {"onCompacted": "resync", "shards": "2", "connectTimeoutSeconds": "1"}


class Life:
    """Two name servers, what happens to them, and the log of it that there should be."""

    def __init__(self, store: RouteStore, stack: ExitStack) -> None:
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
        columns = ["namesrv", "epoch", "revision", "table_name", "key", "from_snapshot", "op", "after_revision", "run"]
        rows = ds.dataset(self.store.changes, partitioning="hive").to_table(columns=columns).to_pylist()
        keys = [tuple(row.values()) for row in rows if row["table_name"] != "reads"]
        assert len(keys) == len(set(keys))


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[Life]:
    """It begins after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    with ExitStack() as stack:
        yield Life(RouteStore.create(tmp_path / "log"), stack)


class Pipeline:
    """``route-pipeline ingest`` in a process group of its own."""

    def __init__(self, life: Life, faults: Path) -> None:
        options = [word for name, value in OPTIONS.items() for word in ("--option", f"{name}={value}")]
        self._said = faults.with_name("said")
        with self._said.open("w") as said:
            self._popen = subprocess.Popen(
                [BIN / "route-pipeline", "ingest", "--namesrv", life.addresses(), "--out", life.store.folder, *options],
                start_new_session=True,
                stdout=said,
                stderr=said,
                env={**os.environ, VARIABLE: str(faults)},
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
    monkeypatch.setattr(disk, "FAILPOINTS", Failpoints(faults))
    for number, step in enumerate(STEPS):
        life.go_on()
        faults.write_text(f"{step} = {ERRORS[number % len(ERRORS)]}\n")
        with pytest.raises(IngestError, match=r"batch_id=\d+.*: (No space left on device|Input/output error)$"):
            life.ingest(spark)
        faults.unlink()
        life.ingest(spark)
    life.check(spark)


def offsets_are_logged(life: Life, before: int) -> bool:
    return len(list(life.store.folder.glob("_checkpoint/*/offsets/[0-9]*"))) > before


def rows_are_being_written(life: Life, _before: int) -> bool:
    return any(path.is_file() for path in life.store.work.glob("*/_temporary/**/*"))


def the_batch_is_committed(life: Life, before: int) -> bool:
    return len(list(life.store.folder.glob("_checkpoint/*/commits/[0-9]*"))) > before


MOMENTS: tuple[Callable[[Life, int], bool], ...] = (offsets_are_logged, rows_are_being_written, the_batch_is_committed)
"""What Spark does, seen from outside."""


@pytest.mark.timeout(900)
def test_killed_with_its_whole_process_group_when_spark_comes_to_a_step_it_goes_on_where_it_was(
    spark: SparkSession, life: Life, tmp_path: Path
) -> None:
    for moment in MOMENTS:
        life.go_on()
        before = sum(1 for _ in life.store.folder.glob("_checkpoint/*/offsets/[0-9]*"))
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
    assert not list(life.store.changes.glob("date=*"))
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
    assert not list(life.store.changes.glob("date=*/run=*/*"))
    lost.before_message = lambda: None
    lost.lost = False
    life.ingest(spark)
    life.check(spark)


def vanish(namesrv: LivingNamesrv) -> None:
    namesrv.lost = True
