"""Appends what name servers tell to the change log: once, or as long as wanted.

Spark's stream gives batches; each is written into a folder of its own, checked, and published by a rename (see
:mod:`route_pipeline.store`). What is written is never a second reading of what was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from groundwork.endpoints import Endpoint
from route_pipeline.options import FORMAT
from route_pipeline.quality import PROBLEM, with_problem
from route_pipeline.schemas import CHANGES, READS
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.store import RouteStore, Run, StoreError
from route_pipeline.summaries import Summary, gap_of, point_of, read_summaries, read_text, write_summaries

INGESTED_AT = "ingested_at"
"""Column of the log: when the batch of a row was written, by this machine's clock."""

_QUARANTINED = "quarantined"
_GOOD, _BAD = f"{_QUARANTINED}=false", f"{_QUARANTINED}=true"

OnBatch = Callable[[list[Summary]], None]


class IngestError(Exception):
    """A batch could not be read or written; those before it stay. The text is one line."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """An ingest that is done."""

    run_id: str
    """The run that it went on with."""
    summaries: tuple[Summary, ...]
    """What its batches brought, by batch and name server."""

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
            checked = with_problem(rows).withColumn(INGESTED_AT, F.lit(at))
            checked = checked.withColumn(_QUARANTINED, F.col(PROBLEM).isNotNull())
            checked.write.partitionBy(_QUARANTINED).parquet(f"file:{batch.staged}")
            batch.publish(_GOOD, _BAD)
        folders = [folder for folder in (batch.changes, batch.quarantine) if folder.exists()]
        summaries = self._summaries(rows.sparkSession, folders, batch_id, at)
        try:
            write_summaries(batch.summary, summaries)
        except OSError as error:
            raise StoreError(f"{batch.summary} cannot be written: {error.strerror}") from error
        self._known |= {summary.namesrv: summary for summary in summaries}
        self.written += summaries
        self.on_batch(summaries)

    def _summaries(self, spark: SparkSession, folders: list[Path], batch_id: int, at: datetime) -> list[Summary]:
        if not folders:
            return []
        rows = spark.read.parquet(*(f"file:{folder}" for folder in folders))
        read = F.when(F.col("table_name") == READS, F.struct("op", "epoch", "revision", "after_revision", "reason"))
        counted = rows.groupBy("namesrv").agg(
            F.count(F.when(F.col(PROBLEM).isNull(), 1)).alias("rows"),
            F.count(PROBLEM).alias("quarantined"),
            F.min(INGESTED_AT).alias(INGESTED_AT),
            F.collect_list(read).alias("reads"),
        )
        summaries = []
        for row in counted.orderBy("namesrv").collect():
            reads: list[Mapping[str, object]] = [read.asDict() for read in row["reads"]]
            before = self._known.get(row["namesrv"])
            epoch, revision = point_of(reads, before)
            summaries.append(
                Summary(
                    run=self.run.run_id,
                    batch_id=batch_id,
                    ingested_at=at,
                    namesrv=row["namesrv"],
                    epoch=epoch,
                    revision=revision,
                    rows=row["rows"],
                    quarantined=row["quarantined"],
                    read=read_text(reads),
                    gap=gap_of(reads, before),
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
    with store.writing():
        run = store.run(new=new_run)
        appender = Appender(store, run, on_batch, now)
        stream = _stream(spark, endpoints, options)
        writer = stream.writeStream.foreachBatch(appender).option("checkpointLocation", f"file:{run.checkpoint}")
        try:
            _wait(writer.trigger(availableNow=True).start())
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error
    return IngestResult(run.run_id, tuple(appender.written))


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
    with store.writing():
        run = store.run()
        appender = Appender(store, run, on_batch, lambda: datetime.now(UTC))
        writer = _stream(spark, endpoints, options).writeStream.foreachBatch(appender)
        writer = writer.option("checkpointLocation", f"file:{run.checkpoint}")
        try:
            _wait(writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds").start())
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error


def _stream(spark: SparkSession, endpoints: Iterable[Endpoint], options: Mapping[str, str] | None) -> DataFrame:
    addresses = ",".join(str(endpoint) for endpoint in endpoints)
    reader = spark.readStream.format(FORMAT).options(**(options or {})).options(endpoints=addresses, table=CHANGES)
    return reader.load()


def _wait(query: StreamingQuery) -> None:
    """Waits for the end of a query; if the wait is interrupted, the query ends with it."""
    try:
        query.awaitTermination()
    finally:
        query.stop()
