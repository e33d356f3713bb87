"""The ingest: plans on the driver, writes Parquet in the tasks, and commits once."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, is_remote
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from groundwork.endpoints import Endpoint
from route_pipeline.arrow_schemas import TIMESTAMP
from route_pipeline.log.data_files import STAMP, NewFile, counted, folder_of, groups
from route_pipeline.log.protocol.commits import BATCH, CHANGES, QUARANTINE, DataFile
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.summaries import Summary, gap_of, point_of, read_text
from route_pipeline.log.protocol.writer import Batch, LogWriter
from route_pipeline.log.quality import PROBLEM, problems_of
from route_pipeline.name_server import NamesrvError, log_wait
from route_pipeline.options import FAIL, WAIT, ReadRequest
from route_pipeline.schemas import CHANGES as CHANGES_TABLE
from route_pipeline.schemas import READS
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.stores.store import Store, StoreRefusedError, StoreUnavailableError
from route_pipeline.stream_reader import INITIAL, NamesrvStreamReader, OffsetError

# The files of a batch: each task writes Parquet with Arrow where its rows arrive.
#
# Spark hands the parts of a batch to tasks, and repeats those that fail; the rows themselves never go through Java,
# which would take them apart and put them together again, one by one. A task gives its files random names. Files of
# an attempt that Spark does not know to have succeeded are in no commit, so nobody reads them.

ROW_GROUP_ROWS = 64 * 1024
"""Rows that a task holds and writes at once, some 10 MB. Fewer make larger files, which take longer to read."""

_READ_COLUMNS = ["namesrv", "op", "epoch", "revision", "after_revision", "reason"]


@dataclass(slots=True)
class Staged:
    """What a task wrote."""

    files: list[DataFile] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    """Rows of the log by name server."""
    quarantined: Counter[str] = field(default_factory=Counter)
    """Rows that were put aside, likewise."""
    reads: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table ``reads``: what the reader says of its reads."""

    def add(self, other: Staged) -> None:
        """Takes in what another task wrote."""
        self.files += other.files
        self.rows += other.rows
        self.quarantined += other.quarantined
        self.reads += other.reads


@dataclass(frozen=True, slots=True)
class Stager:
    """Reads one part of a batch and writes its rows. Travels to the tasks by pickle."""

    request: ReadRequest
    store: Store
    """Where to write to; the folder of the day is there."""
    ingested_at: datetime

    def __call__(self, part: InputPartition) -> Staged:
        date = f"{self.ingested_at.astimezone(UTC):%Y-%m-%d}"
        staged = Staged()
        with (
            NewFile(self.store, CHANGES, date, BATCH) as good,
            NewFile(self.store, QUARANTINE, date, BATCH) as bad,
        ):
            for group in groups(NamesrvStreamReader(self.request).read(part), ROW_GROUP_ROWS):
                self._sort(group, good, bad, staged)
        staged.files += good.files() + bad.files()
        return staged

    def _sort(self, rows: pa.RecordBatch, good: NewFile, bad: NewFile, staged: Staged) -> None:
        """Writes the rows. Mostly none of them breaks a rule."""
        of_reader = pc.equal(rows["table_name"], READS)
        if pc.any(of_reader).as_py():
            staged.reads += rows.filter(of_reader).select(_READ_COLUMNS).to_pylist()
        problems = problems_of(rows)
        stamped = rows.append_column(STAMP, pa.repeat(pa.scalar(self.ingested_at, TIMESTAMP), rows.num_rows))
        if problems is None:
            _write(stamped, good, staged.rows)
            return
        if problems.null_count:
            _write(stamped.filter(problems.is_null()), good, staged.rows)
        _write(stamped.append_column(PROBLEM, problems).filter(problems.is_valid()), bad, staged.quarantined)


def _write(rows: pa.RecordBatch, file: NewFile, numbers: Counter[str]) -> None:
    file.write(rows)
    for (namesrv, _), (_, _, count) in counted(rows).items():
        numbers[namesrv] += count


# Retries for slow Python workers of Spark: Spark waits ten seconds for one to start, and no setting changes that.
#
# On a machine with more to do than cores, Python alone may need longer. Nothing has been read then.

STARTS = 5
"""How often a query is started before it fails: this takes a minute or two, in which a burst of work passes."""

_TOO_SLOW = "Python worker failed to connect back"


def patiently(query: Callable[[], None], wait_seconds: float = 10.0) -> None:
    """Runs a query to its end, again if a Python worker of it did not start in Spark's time.

    Args:
        query: Starts it and waits for it. It goes on at its checkpoint, so it can be run again.
        wait_seconds: Longest time between two tries.
    """
    wait = wait_random_exponential(multiplier=1, max=wait_seconds)
    again = Retrying(stop=stop_after_attempt(STARTS), wait=wait, retry=retry_if_exception(_is_too_slow), reraise=True)
    again(query)


def _is_too_slow(error: BaseException) -> bool:
    return isinstance(error, SPARK_ERRORS) and _TOO_SLOW in str(error)


# The ingest: it appends the rows of name servers to the change log, once or as long as wanted.
#
# A batch is planned on the driver, from the position of the last commit. Spark's tasks check its rows and write them
# (:class:`Stager`). A commit (:mod:`route_pipeline.log.protocol.writer`) makes them part of the log,
# with the position that was reached. The position is nowhere else, so there is nothing that could disagree with it.

OnBatch = Callable[[list[Summary]], None]
OnWait = Callable[[Endpoint, str], None]


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
        on_wait: OnWait = log_wait,
        new_run: bool = False,
        follows: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Opens the log to write to.

        Args:
            spark: A session whose driver is this process.
            on_wait: Called with address and name of a name server that is not read because it is warming up, once
                until it is read.
            new_run: Whether to forget how far was read, and so to begin with a snapshot.
            follows: Whether :meth:`once` is called again and again. It then leaves out name servers that are warming
                up, and does not fail.

        Raises:
            IngestError: Spark's driver is behind Spark Connect.
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
        self._options = _options(endpoints, options, WAIT if follows else FAIL)
        self._on_wait = on_wait
        self._follows = follows
        self._waiting: set[Endpoint] = set()
        self._writer = LogWriter(log)
        found = self._writer.state
        if new_run or found.position is None:
            self._run, self._batch, self._position = _new_run(now()), 0, INITIAL
        else:
            self._run, self._batch, self._position = found.run, found.batch + 1, dict(found.position)

    def once(self) -> IngestResult:
        """Appends all that there is now. After an error, another call goes on where it was.

        Each call reads the files of certificates and the token.

        Raises:
            IngestError: An option or one of its files is wrong, name servers could not be read, or a batch could not be
                written; those before it stay.
            StoreError: The log cannot be written to.
        """
        try:
            request = ReadRequest.of_options(self._options, streaming=True)
        except ValueError as error:
            raise IngestError(str(error)) from error
        waiting: set[Endpoint] = set()

        def on_wait(endpoint: Endpoint, namesrv: str) -> None:
            waiting.add(endpoint)
            if endpoint not in self._waiting:
                self._waiting.add(endpoint)
                self._on_wait(endpoint, namesrv)

        reader = NamesrvStreamReader(request, on_wait=on_wait, waits_for_all=not self._follows)
        limit = reader.getDefaultReadLimit()
        written: list[Summary] = []
        try:
            self._catch_up()
            reader.prepareForTriggerAvailableNow()
            while (end := reader.latestOffset(self._position, limit)) != self._position:
                summaries = self._append(request, reader, end)
                self._on_batch(summaries)
                written += summaries
        except (NamesrvError, OffsetError, StoreRefusedError, StoreUnavailableError) as error:
            raise IngestError(str(error)) from error
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error
        finally:
            reader.release()
        self._waiting = waiting
        return IngestResult(self._run, tuple(written))

    def _catch_up(self) -> None:
        """Goes on after a batch that is in the log though every answer that said so was lost."""
        self._writer.catch_up()
        found = self._writer.state
        if found.position is not None and found.run == self._run and found.batch >= self._batch:
            self._batch, self._position = found.batch + 1, dict(found.position)

    def _append(self, request: ReadRequest, reader: NamesrvStreamReader, end: dict[str, Any]) -> list[Summary]:
        staged, at = self._stage(request, reader, end)
        summaries = self._summaries(staged, at)
        self._writer.append_batch(Batch(self._run, self._batch, end, tuple(summaries)), staged.files)
        reader.release()
        self._position = end
        self._batch += 1
        return summaries

    def _stage(self, request: ReadRequest, reader: NamesrvStreamReader, end: dict[str, Any]) -> tuple[Staged, datetime]:
        """Writes the rows of a batch, and returns what was written and the time that the rows have."""
        staged, at = Staged(), self._now()

        def run() -> None:
            nonlocal at
            # Planned anew each time: a snapshot's pin may be gone by then.
            parts = reader.partitions(self._position, end)
            # Not before the snapshots are taken, which the plan does: else clocks of one machine seem to differ.
            at = self._now()
            store = self._writer.log.store
            store.make_folder(folder_of(f"{at.astimezone(UTC):%Y-%m-%d}"))
            if parts:
                stager = Stager(request, store, at)
                for one in self._spark.sparkContext.parallelize(parts, len(parts)).map(stager).collect():
                    staged.add(one)

        patiently(run)
        return staged, at

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


def _options(endpoints: Iterable[Endpoint], options: Mapping[str, str] | None, on_cold: str) -> CaseInsensitiveDict:
    fixed = {"endpoints": ",".join(map(str, endpoints)), "table": CHANGES_TABLE}
    return CaseInsensitiveDict({"onCold": on_cold} | CaseInsensitiveDict(options or {}) | fixed)


def _new_run(at: datetime) -> str:
    return f"{at:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"
