"""Many readers of one anonymous name server whose routes change all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from namesrv.core.pins import MAX_PINNED_REVISIONS
from namesrv_common.endpoints import Endpoint
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.positions import INITIAL
from route_pipeline.spark_readers import NamesrvStreamReader
from tests.support.metrics_page import samples
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import register

NOTEBOOKS, LOADS, TOPICS = 10, 10, 2_000


@contextmanager
def changing(client: Client) -> Iterator[None]:
    """Changes the routes all the time."""
    done = threading.Event()

    def change() -> None:
        counter = 1
        while not done.wait(0.01):
            counter += 1
            register(client, *(f"T{number}" for number in range(TOPICS)), f"Other{counter}", counter=counter)

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change)
        try:
            yield
        finally:
            done.set()
        changes.result()


def notebook(endpoint: Endpoint) -> set[int]:
    """Loads the routes again and again, and reads each load once. Returns the revisions that it has read."""
    revisions: set[int] = set()
    for _ in range(LOADS):
        reader = NamesrvDataSource({"endpoints": str(endpoint)}).reader(StructType())
        (part,) = reader.partitions()
        rows = pa.Table.from_batches(reader.read(part))
        assert rows.num_rows > TOPICS
        revisions |= set(rows["revision"].to_pylist())
    return revisions


def ingest(endpoint: Endpoint) -> int:
    """Begins with a snapshot again and again, as after restarts of the name server. Returns how often it did."""
    request = ReadRequest.of({"endpoints": str(endpoint), "table": "changes"}, STREAMING)
    for _ in range(LOADS):
        reader = NamesrvStreamReader(request)
        (part,) = reader.partitions(INITIAL, reader.latestOffset(INITIAL, ReadAllAvailable()))
        assert sum(batch.num_rows for batch in reader.read(part)) > TOPICS
        reader.stop()
    return LOADS


def test_ten_notebooks_and_an_ingest_read_a_name_server_that_changes() -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv, namesrv.connect() as client:
        metrics = str(namesrv.wait_for("namesrv_started")["metrics"])
        register(client, *(f"T{number}" for number in range(TOPICS)), "Other1")
        with changing(client), ThreadPoolExecutor(NOTEBOOKS + 1) as pool:
            ingested = pool.submit(ingest, namesrv.endpoint)
            notebooks = [pool.submit(notebook, namesrv.endpoint) for _ in range(NOTEBOOKS)]
            assert all(len(one.result()) > LOADS // 2 for one in notebooks)
            assert ingested.result() == LOADS
        # Notebooks alone may take three quarters; one may share a revision from the quarter reserved for an ingest.
        assert 0 < samples(metrics)["namesrv_shares_used", "pinned_revisions"] <= MAX_PINNED_REVISIONS
