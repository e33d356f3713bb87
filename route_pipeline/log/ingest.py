"""The ingest: it appends the rows of name servers to the change log, once or as long as wanted.

A batch is planned on the driver, from the position of the last commit. Spark's tasks check its rows and write them
(:mod:`route_pipeline.log.staging`). A commit (:mod:`route_pipeline.log.protocol.writer`) makes them part of the log,
with the position that was reached. The position is nowhere else, so there is nothing that could disagree with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession, is_remote

from groundwork.endpoints import Endpoint
from route_pipeline.log.data_files import folder_of
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.summaries import Summary, gap_of, point_of, read_text
from route_pipeline.log.protocol.writer import Batch, LogWriter
from route_pipeline.log.slow_workers import patiently
from route_pipeline.log.staging import Staged, Stager
from route_pipeline.schemas import CHANGES
from route_pipeline.source.name_server.connection import NamesrvError
from route_pipeline.source.offsets import INITIAL, OffsetError
from route_pipeline.source.options import ReadRequest
from route_pipeline.source.stream_reader import NamesrvStreamReader
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.stores.store import StoreRefusedError, StoreUnavailableError

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


class Ingester:
    """Appends to a log what has changed, as often as it is asked to."""

    def __init__(
        self,
        spark: SparkSession,
        endpoints: Iterable[Endpoint],
        log: RouteLog,
        options: Mapping[str, str] | None = None,
        *,
        on_batch: OnBatch = lambda _summaries: None,
        new_run: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Opens the log to write to.

        Args:
            spark: A session whose driver is this process.
            endpoints: Where the name servers listen.
            log: Where to write to.
            options: More options of the data source.
            on_batch: Told the summaries of each batch.
            new_run: Whether to forget how far was read, and so to begin with a snapshot.
            now: The clock.

        Raises:
            IngestError: An option is wrong, or Spark's driver is behind Spark Connect.
            StoreError: The log cannot be written to.
        """
        if is_remote():
            raise IngestError(
                "a session of Spark Connect has its driver elsewhere: submit route-pipeline to the cluster instead, "
                "or write the stream 'namesrv' with a sink of Spark's"
            )
        self._spark = spark
        self._on_batch = on_batch
        self._now = now
        try:
            self._request = ReadRequest.of_options(_options(endpoints, options), streaming=True)
        except ValueError as error:
            raise IngestError(str(error)) from error
        self._writer = LogWriter(log)
        found = self._writer.state
        if new_run or found.position is None:
            self._run, self._batch, self._position = _new_run(now()), 0, INITIAL
        else:
            self._run, self._batch, self._position = found.run, found.batch + 1, dict(found.position)

    def once(self) -> IngestResult:
        """Appends all that there is now. After an error, another call goes on where it was.

        Raises:
            IngestError: Name servers could not be read, or a batch could not be written; those before it stay.
            StoreError: The log cannot be written to.
        """
        reader = NamesrvStreamReader(self._request)
        limit = reader.getDefaultReadLimit()
        written: list[Summary] = []
        try:
            self._catch_up()
            reader.prepareForTriggerAvailableNow()
            while (end := reader.latestOffset(self._position, limit)) != self._position:
                summaries = self._append(reader, end)
                self._on_batch(summaries)
                written += summaries
        except (NamesrvError, OffsetError, StoreRefusedError, StoreUnavailableError) as error:
            raise IngestError(str(error)) from error
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error
        return IngestResult(self._run, tuple(written))

    def _catch_up(self) -> None:
        """Goes on after a batch that is in the log though every answer that said so was lost."""
        self._writer.catch_up()
        found = self._writer.state
        if found.position is not None and found.run == self._run and found.batch >= self._batch:
            self._batch, self._position = found.batch + 1, dict(found.position)

    def _append(self, reader: NamesrvStreamReader, end: dict[str, Any]) -> list[Summary]:
        """Appends one batch."""
        at = self._now()
        self._writer.log.store.make_folder(folder_of(f"{at.astimezone(UTC):%Y-%m-%d}"))
        staged = self._stage(Stager(self._request, self._writer.log.store, at), reader, end)
        summaries = self._summaries(staged, at)
        self._writer.append_batch(Batch(self._run, self._batch, end, tuple(summaries)), staged.files)
        self._position = end
        self._batch += 1
        return summaries

    def _stage(self, stager: Stager, reader: NamesrvStreamReader, end: dict[str, Any]) -> Staged:
        """Plans a batch and lets the tasks write it."""
        staged = Staged()

        def run() -> None:
            # Planned anew each time: a snapshot's pin may be gone by then.
            parts = reader.partitions(self._position, end)
            if parts:
                for one in self._spark.sparkContext.parallelize(parts, len(parts)).map(stager).collect():
                    staged.add(one)

        patiently(run)
        return staged

    def _summaries(self, staged: Staged, at: datetime) -> list[Summary]:
        summaries = []
        for namesrv in sorted(staged.rows.keys() | staged.quarantined.keys()):
            before = self._writer.state.known.get(namesrv)
            reads = [read for read in staged.reads if read["namesrv"] == namesrv]
            epoch, revision = point_of(reads, before)
            summaries.append(
                Summary(
                    run=self._run,
                    batch_id=self._batch,
                    ingested_at=at,
                    namesrv=namesrv,
                    epoch=epoch,
                    revision=revision,
                    rows=staged.rows[namesrv],
                    quarantined=staged.quarantined[namesrv],
                    read=read_text(reads),
                    gap=gap_of(reads, before),
                )
            )
        return summaries


def ingest(
    spark: SparkSession,
    endpoints: Iterable[Endpoint],
    log: RouteLog,
    options: Mapping[str, str] | None = None,
    *,
    on_batch: OnBatch = lambda _summaries: None,
    new_run: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> IngestResult:
    """Appends everything that changed since the last ingest; the first one begins with a snapshot.

    The arguments are those of :class:`Ingester`.

    Raises:
        IngestError: Name servers could not be read, or a batch could not be written; those before it stay.
        StoreError: The log cannot be written to.
    """
    return Ingester(spark, endpoints, log, options, on_batch=on_batch, new_run=new_run, now=now).once()


def _options(endpoints: Iterable[Endpoint], options: Mapping[str, str] | None) -> dict[str, str]:
    return {**(options or {}), "endpoints": ",".join(map(str, endpoints)), "table": CHANGES}


def _new_run(at: datetime) -> str:
    return f"{at:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"
