"""The files of a batch: each task writes Parquet with Arrow where its rows arrive.

Spark hands the parts of a batch to tasks, and repeats those that fail; the rows themselves never go through Java, which
would take them apart and put them together again, one by one. A task gives its files random names. Files of an attempt
that Spark does not know to have succeeded are in no commit, so nobody reads them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from route_pipeline.arrow_schemas import TIMESTAMP
from route_pipeline.log.data_files import STAMP, NewFile, counted, groups
from route_pipeline.log.protocol.commits import BATCH, CHANGES, QUARANTINE, DataFile
from route_pipeline.log.quality import PROBLEM, problems_of
from route_pipeline.schemas import READS
from route_pipeline.source.options import ReadRequest
from route_pipeline.source.stream_reader import NamesrvStreamReader
from route_pipeline.stores.store import Store

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
        """Does so.

        Raises:
            NamesrvError: The part could not be read whole.
            StoreError: It could not be written.
        """
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
