"""The ingest: it appends the rows of name servers to the change log, once or as long as wanted.

Spark's stream gives batches; the tasks of each check its rows and write them (:mod:`route_pipeline.log.staging`), and
the files of those that succeeded are published by a rename (see :mod:`route_pipeline.log.store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from groundwork.endpoints import Endpoint
from groundwork.files import disk
from route_pipeline.log.batch_counts import brought
from route_pipeline.log.slow_workers import patiently
from route_pipeline.log.staging import BAD, GOOD, PART, PartsSource, Stager
from route_pipeline.log.store import Batch, RouteStore, Run, StoreError
from route_pipeline.log.summaries import Summary, gap_of, point_of, read_summaries, read_text, write_summaries
from route_pipeline.schemas import CHANGES
from route_pipeline.source.options import ReadRequest
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

_BEING_WRITTEN = "_temporary"
"""Folder of a batch's files that tasks still write, or that failed tasks left."""

OnBatch = Callable[[list[Summary]], None]


class IngestError(Exception):
    """A batch could not be read or written; those before it stay. The text is one line."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """An ingest that is done."""

    run_id: str
    """The run that it went on with."""
    summaries: tuple[Summary, ...]
    """The summaries of its batches, by batch and name server."""

    @property
    def rows(self) -> int:
        """Rows appended."""
        return sum(summary.rows for summary in self.summaries)

    @property
    def quarantined(self) -> int:
        """Rows put aside."""
        return sum(summary.quarantined for summary in self.summaries)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, each with the name server."""
        return tuple(f"{summary.namesrv}: {summary.gap}" for summary in self.summaries if summary.gap)


@dataclass
class Appender:
    """Writes batches to the log. Spark may call it again with a batch that it wrote before."""

    store: RouteStore
    run: Run
    request: ReadRequest
    on_batch: OnBatch
    now: Callable[[], datetime]
    written: list[Summary] = field(default_factory=list)
    """Summaries of this process's batches."""

    def __post_init__(self) -> None:
        self._known = {summary.namesrv: summary for summary in read_summaries(self.store.ingests)}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Appends a batch.

        Raises:
            StoreError: It cannot be moved to its place.
        """
        at = self.now()
        batch = self.store.batch(self.run, batch_id, at)
        if batch is None:
            return
        if not batch.is_staged:
            self._stage(rows, batch, at)
            batch.publish(GOOD, BAD)
        summaries = self._summaries(batch, batch_id, at)
        try:
            write_summaries(batch.summary, summaries)
        except OSError as error:
            raise StoreError(f"{batch.summary} cannot be written: {error.strerror}") from error
        self._known |= {summary.namesrv: summary for summary in summaries}
        self.written += summaries
        self.on_batch(summaries)

    def _stage(self, rows: DataFrame, batch: Batch, at: datetime) -> None:
        """Lets the tasks write the batch, and collects the files of those that succeeded."""
        folder = batch.staged / _BEING_WRITTEN
        try:
            folder.mkdir(parents=True)
            stage = F.udf(Stager(self.request, folder, at), "array<string>", useArrow=False).asNondeterministic()
            for row in rows.select(stage(PART)).collect():
                for name in row[0]:
                    kind, _, target = name.partition("-")
                    (batch.staged / kind).mkdir(exist_ok=True)
                    disk.rename(folder / name, batch.staged / kind / target)
        except OSError as error:
            raise StoreError(f"batch {batch.staged} cannot be written: {error.strerror}") from error

    def _summaries(self, batch: Batch, batch_id: int, at: datetime) -> list[Summary]:
        summaries = []
        for namesrv, counts in brought(batch.changes, batch.quarantine).items():
            before = self._known.get(namesrv)
            epoch, revision = point_of(counts.reads, before)
            summaries.append(
                Summary(
                    run=self.run.run_id,
                    batch_id=batch_id,
                    ingested_at=at,
                    namesrv=namesrv,
                    epoch=epoch,
                    revision=revision,
                    rows=counts.rows,
                    quarantined=counts.quarantined,
                    read=read_text(counts.reads),
                    gap=gap_of(counts.reads, before),
                )
            )
        return summaries


def ingest(
    spark: SparkSession,
    endpoints: Iterable[Endpoint],
    store: RouteStore,
    options: Mapping[str, str] | None = None,
    *,
    on_batch: OnBatch = lambda _summaries: None,
    new_run: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> IngestResult:
    """Appends everything that changed since the last ingest; the first one begins with a snapshot.

    Args:
        spark: A session that knows the format ``namesrv``.
        endpoints: Where the name servers listen.
        store: Where to write to.
        options: More options of the data source.
        on_batch: Told the summaries of each batch.
        new_run: Whether to begin a new checkpoint, and so with a snapshot.
        now: The clock.

    Raises:
        IngestError: Name servers could not be read, or Spark failed; batches that were written stay.
        StoreError: The folder cannot be written to.
    """
    _check_driver()
    with store.writing():
        appender = Appender(store, store.run(new=new_run), _request(endpoints, options), on_batch, now)
        try:
            patiently(lambda: _wait(_writer(spark, appender, endpoints, options).trigger(availableNow=True).start()))
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error
    return IngestResult(appender.run.run_id, tuple(appender.written))


def follow(
    spark: SparkSession,
    endpoints: Iterable[Endpoint],
    store: RouteStore,
    seconds: float,
    options: Mapping[str, str] | None = None,
    *,
    on_batch: OnBatch = lambda _summaries: None,
) -> None:
    """Goes on appending, with a batch every so many seconds if there is something new, until interrupted.

    Args:
        spark: A session that knows the format ``namesrv``.
        endpoints: Where the name servers listen.
        store: Where to write to.
        seconds: Time from the start of one batch to the start of the next.
        options: More options of the data source.
        on_batch: Told the summaries of each batch.

    Raises:
        IngestError: Name servers could not be read, or Spark failed.
        StoreError: The folder cannot be written to.
    """
    _check_driver()
    with store.writing():
        request = _request(endpoints, options)
        appender = Appender(store, store.run(), request, on_batch, lambda: datetime.now(UTC))
        writer = _writer(spark, appender, endpoints, options)
        try:
            patiently(lambda: _wait(writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start()))
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error


def _check_driver() -> None:
    """Checks that Spark's driver is in this process. The driver publishes batches and holds the lock of the folder.

    Raises:
        IngestError: It is behind Spark Connect.
    """
    if is_remote():
        raise IngestError(
            "a session of Spark Connect has its driver elsewhere: submit route-pipeline to the cluster instead, "
            "or write the stream 'namesrv' with a sink of Spark's"
        )


def _request(endpoints: Iterable[Endpoint], options: Mapping[str, str] | None) -> ReadRequest:
    """What is to be read.

    Raises:
        IngestError: An option is wrong.
    """
    try:
        return ReadRequest.of_options(_options(endpoints, options), streaming=True)
    except ValueError as error:
        raise IngestError(str(error)) from error


def _options(endpoints: Iterable[Endpoint], options: Mapping[str, str] | None) -> dict[str, str]:
    return {**(options or {}), "endpoints": ",".join(map(str, endpoints)), "table": CHANGES}


def _writer(
    spark: SparkSession, appender: Appender, endpoints: Iterable[Endpoint], options: Mapping[str, str] | None
) -> DataStreamWriter:
    spark.dataSource.register(PartsSource)
    parts = spark.readStream.format(PartsSource.name()).options(**_options(endpoints, options)).load()
    return parts.writeStream.foreachBatch(appender).option("checkpointLocation", f"file:{appender.run.checkpoint}")


def _wait(query: StreamingQuery) -> None:
    """Waits for the end of a query; if the wait is interrupted, the query ends with it."""
    try:
        query.awaitTermination()
    finally:
        query.stop()
