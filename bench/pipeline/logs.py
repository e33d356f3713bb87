"""Logs of many batches: how long a start takes on one, and each question before and after a compaction."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.figures import Sample, progress
from bench.pipeline.sizes import Sizes, timed
from route_pipeline.log.compaction import compact
from route_pipeline.log.history import history
from route_pipeline.log.ingest import Ingester
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol import file_list
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import Batch, LogWriter
from route_pipeline.queries import divergence, latest_state, route_at
from route_pipeline.session import QUICK_START, spark_session
from route_pipeline.stores.urls import open_store
from tests.support.programs.processes import BIN, NamesrvProcess
from tests.support.programs.s3_server import make_bucket, running_s3_server
from tests.support.registrations import identity, registration

OLD_BATCHES = 100_000
COMMAND_SECONDS = 600
BROKERS = 20
COPIES_AT_ONCE = 16


def start(sizes: Sizes) -> Iterator[Sample]:
    """``route-pipeline ingest`` on a new log, and on one of 100,000 batches; and only opening each to write."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        for number in range(sizes.rounds):
            with NamesrvProcess("--name", "ns-a") as namesrv, namesrv.connect() as client:
                client.registration.RegisterBroker(registration(["TopicTest"], identity()), timeout=20)
                for name, batches in (("a new log", 0), (f"a log of {OLD_BATCHES:,} batches", OLD_BATCHES)):
                    progress(f"start on {name}: round {number + 1}")
                    place = f"{folder}/{number}-{batches}"
                    command: list[str | Path] = [BIN / "route-pipeline", "ingest", "--out", place]
                    command += ["--namesrv", str(namesrv.endpoint)]
                    if batches:
                        _ingest(command)
                        _grow(place, batches)
                    with timed() as seconds:
                        _ingest(command)
                    yield Sample("start of an ingest", f"the command, on {name}", "s", seconds[0])
                    with timed() as seconds:
                        LogWriter(RouteLog.open(place))
                    yield Sample("start of an ingest", f"opening {name} to write", "s", seconds[0])


def operations_posix(sizes: Sizes) -> Iterator[Sample]:
    """Every question to a log on a disk."""
    with tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
        yield from _operations(f"{sizes.batches:,} batches on a disk", f"{folder}/log", f"{folder}/log", sizes)


def operations_s3(sizes: Sizes) -> Iterator[Sample]:
    """Every question to a log on an S3 server on the same cores."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-log-") as folder,
        running_s3_server(Path(folder) / "s3") as endpoint,
    ):
        place = f"s3://{make_bucket(endpoint)}/log"
        yield from _operations(f"{sizes.batches:,} batches on S3", f"{folder}/log", place, sizes)


def _operations(workload: str, made_at: str, place: str, sizes: Sizes) -> Iterator[Sample]:
    with spark_session("local[2]", QUICK_START) as spark:
        spark.range(1).count()
        _make_log(made_at, sizes.batches)
        if place != made_at:
            progress("copying the log to S3")
            _copy(made_at, place)
        log = RouteLog.open(place)
        # What a Spark has to learn for its first questions is not the log's business.
        _make_log(f"{made_at}-small", 3)
        for work in _questions(spark, RouteLog.open(f"{made_at}-small")).values():
            work()
        for when in ("before", "after"):
            if when == "after":
                with timed() as seconds:
                    compact(log)
                yield Sample(workload, "compact", "s", seconds[0])
            for name, work in _questions(spark, log).items():
                progress(f"{workload}: {name} {when} compaction")
                with timed() as seconds:
                    work()
                yield Sample(workload, f"{name}, {when} compaction", "s", seconds[0])


def _questions(spark: SparkSession, log: RouteLog) -> dict[str, Callable[[], object]]:
    return {
        "history": lambda: history(read_changes(spark, log)).count(),
        "as-of": lambda: route_at(history(read_changes(spark, log)), "T1", datetime.now(UTC)),
        "divergence": lambda: divergence(read_changes(spark, log), history(read_changes(spark, log)).cache()).count(),
        "report": lambda: latest_state(
            log.state(), read_changes(spark, log), history(read_changes(spark, log)).cache()
        ),
    }


class _TasksHere:
    """Runs the tasks of an ingest in this process: a thousand jobs of Spark would take longer than what is measured."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._done: list[Any] = []

    def parallelize(self, parts: list[Any], _count: int) -> _TasksHere:
        self._done = parts
        return self

    def map(self, task: Callable[[Any], Any]) -> _TasksHere:
        self._done = [task(part) for part in self._done]
        return self

    def collect(self) -> list[Any]:
        return self._done


def _make_log(place: str, batches: int) -> None:
    """Two name servers, of which the second hears of each change one batch later; a batch for each change."""
    progress(f"making a log of {batches:,} batches")
    with ExitStack() as stack:
        servers = [stack.enter_context(NamesrvProcess("--name", name)) for name in ("ns-a", "ns-b")]
        clients = [stack.enter_context(server.connect()) for server in servers]
        here = cast(SparkSession, _TasksHere())
        ingester = Ingester(here, [server.endpoint for server in servers], RouteLog.create(place))
        late = registration(["T0"], identity("127.0.0.1:10000", name="broker-0"))
        for number in range(batches):
            broker = identity(f"127.0.0.1:{10_000 + number % BROKERS}", name=f"broker-{number % BROKERS}")
            request = registration([f"T{number % 97}", f"U{number % 13}"], broker, counter=number + 1)
            clients[0].registration.RegisterBroker(request, timeout=20)
            clients[1].registration.RegisterBroker(late, timeout=20)
            late = request
            ingester.once()


def _copy(made_at: str, place: str) -> None:
    source, target = open_store(made_at), open_store(place)
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(lambda file: target.create(file.path, source.read(file.path)), source.files()))


def _ingest(command: list[str | Path]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=COMMAND_SECONDS)


def _grow(place: str, batches: int) -> None:
    """Makes a log one of so many batches: its newest checkpoint says so, and the commits before it were never made."""
    writer = LogWriter(RouteLog.open(place))
    paths = pa.array([f"data/2026-01-02/{number:032x}.parquet" for number in range(batches)])
    rows = writer.state.file_list.table()
    rows = rows.take(pa.repeat(0, batches)).set_column(0, file_list.SCHEMA.field(0), paths)
    writer.state.file_list.go_on_from(rows)
    writer.state.number = batches
    assert writer.state.position is not None
    writer.append_batch(Batch(writer.state.run, batches, writer.state.position, ()), ())
