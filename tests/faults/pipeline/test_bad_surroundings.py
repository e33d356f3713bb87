"""What goes wrong around the pipeline: other checkpoints, disks that fill, and a name server that goes away."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.ingest import IngestError, ingest
from route_pipeline.log.protocol.route_log import RouteLog, files
from route_pipeline.log.protocol.writer import Batch, LogWriter
from route_pipeline.stores.store import StoreError
from tests.faults.fleet.pipeline import Pipeline
from tests.faults.history import History
from tests.support.fakes.snapshot_name_server import FakeNamesrv, fleet_chunk, queue, serving, snapshot, topics_chunk
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import registration
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

QUICK = {"connectTimeoutSeconds": "1", "timeoutSeconds": "60"}
SPARK_SECONDS = 120.0
TIMEOUT = 10.0
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def fake(spark: SparkSession) -> Iterator[FakeNamesrv]:
    """It starts after Spark: a fork under gRPC's threads can go wrong."""
    assert spark.version
    chunks = (fleet_chunk(id0="10.0.0.1:10911"), topics_chunk(TopicTest=[queue("broker-a")]))
    with serving(snapshot(*chunks)) as serves:
        yield serves


def rewrite_position(store: RouteLog, position: dict[str, object]) -> None:
    """Commits another position of the source, as a batch without rows."""
    writer = LogWriter(store)
    writer.append_batch(Batch(writer.state.run, writer.state.batch + 1, position, ()), ())


def test_a_position_of_another_program_is_refused_and_a_new_run_can_begin(
    spark: SparkSession, fake: FakeNamesrv, tmp_path: Path
) -> None:
    store = RouteLog.create(tmp_path / "log")
    first = ingest(spark, [fake.endpoint], store, QUICK)
    rewrite_position(store, {"some-topic": {"0": 23}})
    fake.revision += 1

    with pytest.raises(IngestError, match=r"offsets of version None, this program knows 1.*: start a new checkpoint"):
        ingest(spark, [fake.endpoint], store, QUICK)

    again = ingest(spark, [fake.endpoint], store, QUICK, new_run=True)
    assert (again.run_id != first.run_id, again.rows) == (True, first.rows)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount, which makes a small disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: that needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)


def fill(disk: Path, leave: int) -> Path:
    """Writes a file that leaves so many bytes of the disk."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - leave))
    return filler


def test_a_disk_full_at_any_point_of_a_batch_is_told_and_costs_nothing(
    spark: SparkSession, fake: FakeNamesrv, small_disk: Path
) -> None:
    store = RouteLog.create(small_disk / "log")
    told: list[str] = []
    for pages in range(16):  # the probe does not fit, then the rows, then the commit
        filler = fill(small_disk, pages * 4_096)
        try:
            ingest(spark, [fake.endpoint], store, QUICK)
            break
        except (IngestError, StoreError) as error:
            told.append(str(error))
        finally:
            filler.unlink()
    assert len(told) > 2
    assert [text for text in told if "No space left on device" not in text or "\n" in text] == []
    rows = ds.dataset(files(store.url)).to_table(columns=["table_name", "key"]).to_pylist()
    assert sorted(row["table_name"] for row in rows) == ["broker_groups", "clusters", "reads", "topic_queues"]


def register(server: NamesrvProcess, *topics: str) -> None:
    with server.connect() as client:
        client.registration.RegisterBroker(registration(topics), timeout=TIMEOUT)


@pytest.mark.timeout(4 * SPARK_SECONDS)
def test_it_goes_on_once_its_name_server_is_back(tmp_path: Path) -> None:
    with NamesrvProcess() as first, closing(History(tmp_path / "history.jsonl")) as history:
        register(first, "TopicA")
        with Pipeline(tmp_path, history, [str(first.endpoint)]) as pipeline:
            pipeline.wait_for_batch(SPARK_SECONDS)
            first.kill()
            told = eventually(lambda: pipeline.said("trying again"), within_seconds=SPARK_SECONDS)
            assert {json.loads(line)["level"] for line in told} == {"warning"}
            with NamesrvProcess(port=first.endpoint.port) as second:
                register(second, "TopicA", "TopicB")
                pipeline.wait_for_batch(SPARK_SECONDS)
