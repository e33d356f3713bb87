"""One round of ``bench.pipeline``: a Spark of its own reads the tables of a name server that is there already.

It prints its figures as JSON lines; see ``bench.pipeline`` for what they mean.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from bench.figures import Sample, own_output, progress, shown
from bench.pipeline.spark_processes import spark_processes
from groundwork.endpoints import Endpoint, parse_endpoints
from route_pipeline.log.ingest import ingest
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.name_server import open_snapshot
from route_pipeline.options import Connecting
from route_pipeline.session import spark_session

CORES = 2
DRIVER_MEMORY = "1g"
"""Heap of Java, which is driver and executor here: too little for any of the tables."""


def main() -> None:
    """Prints the figures of one round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("endpoint", type=parse_endpoints)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--store", help="a URL: measure only how fast logs on it are filled")
    arguments = parser.parse_args()
    output = own_output()
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder:
        (endpoint,) = arguments.endpoint
        for name, unit, value in figures(endpoint, Path(folder), arguments.attempts, arguments.store):
            print(json.dumps(Sample(arguments.workload, name, unit, value)), file=output)
            progress(f"{name}: {shown(value)} {unit}")


def figures(endpoint: Endpoint, folder: Path, attempts: int, store: str | None) -> Iterator[tuple[str, str, float]]:
    """Name, unit and value of each figure."""
    with (
        timed() as started,
        spark_session(f"local[{CORES}]", {"spark.driver.memory": DRIVER_MEMORY}) as spark,
    ):
        spark.range(1).count()
        started.stop()
        yield "Spark session and first job", "s", started.seconds
        for _ in range(attempts):
            with timed() as counted:
                rows = count(endpoint)
            yield "Python client that only counts", "rows/s", rows / counted.seconds
        works: dict[str, Callable[[], None]] = {
            "data source into Parquet": lambda: into_parquet(spark, endpoint, folder / "routes"),
            "ingest": lambda: ingest_once(spark, endpoint, folder / "log"),
        }
        if store is not None:
            works = {"ingest": lambda: ingest_into(spark, endpoint, f"{store}/{secrets.token_hex(4)}")}
        for name, work in works.items():
            for attempt in range(attempts):
                when = "first time" if attempt == 0 else "again"
                with spark_processes() as processes, timed() as worked:
                    work()
                used = processes.used()
                yield f"{name}, {when}", "rows/s", rows / worked.seconds
                yield f"{name}, {when}: processor time of Java", "ns/row", used.java_seconds / rows * 1e9
                yield f"{name}, {when}: of the Python workers", "ns/row", used.worker_seconds / rows * 1e9
            yield f"{name}: most memory of Java", "MiB", used.java_mib
            yield f"{name}: of one Python worker", "MiB", used.worker_mib


def count(endpoint: Endpoint) -> int:
    """Queue rows of a name server."""
    with open_snapshot(endpoint, Connecting()) as snapshot:
        return sum(len(topic.queue_datas) for chunk in snapshot.chunks() for topic in chunk.topics)


def into_parquet(spark: SparkSession, endpoint: Endpoint, target: Path) -> None:
    """Writes topic_queues by Spark."""
    routes = spark.read.format("namesrv").option("endpoints", str(endpoint)).load()
    routes.write.mode("overwrite").parquet(f"file:{target}")


def ingest_once(spark: SparkSession, endpoint: Endpoint, folder: Path) -> None:
    """The first ingest of a log, which is then taken away."""
    ingest_into(spark, endpoint, str(folder))
    shutil.rmtree(folder)


def ingest_into(spark: SparkSession, endpoint: Endpoint, place: str) -> None:
    """The first ingest of a log."""
    ingest(spark, [endpoint], RouteLog.create(place))


class Timed:
    """Seconds of a block, or up to where it was stopped."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds = 0.0

    def stop(self) -> None:
        """Takes the time, once."""
        self.seconds = self.seconds or time.perf_counter() - self._began


@contextmanager
def timed() -> Iterator[Timed]:
    """Takes the time of a block."""
    timer = Timed()
    yield timer
    timer.stop()


if __name__ == "__main__":
    main()
