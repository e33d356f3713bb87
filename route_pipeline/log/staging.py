"""The files of a batch: each task writes Parquet with Arrow where its rows arrive.

Spark plans a batch, hands its parts to tasks, and repeats those that fail; the rows themselves never go through Java,
which would take them apart and put them together again, one by one. A task gives its files random names. Files of an
attempt that Spark does not know to have succeeded are never read.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from groundwork.files import disk
from route_pipeline.log.quality import PROBLEM, problems_of
from route_pipeline.schemas import TIMESTAMP
from route_pipeline.source.data_source import NamesrvDataSource
from route_pipeline.source.options import ReadRequest
from route_pipeline.source.stream_reader import NamesrvStreamReader

PART = "part"
"""Column of the format ``namesrv_parts``: a part of a batch, for ``Stager``."""

INGESTED_AT = "ingested_at"
"""Column of the log: when the batch of a row was written, by the clock of the machine that Spark's driver is on."""

GOOD, BAD = "good", "bad"
"""Folders below that of a batch under way: rows of the log, and rows that break the contract."""

ROW_GROUP_ROWS = 64 * 1024
"""Rows that a task holds and writes at once, some 10 MB. Fewer make larger files, which take longer to read."""

_STAMP = pa.field(INGESTED_AT, TIMESTAMP, nullable=False)
_PARTS = pa.schema([pa.field(PART, pa.binary(), nullable=False)])


class StagingError(Exception):
    """A task cannot write; the text is one line."""


class PartsSource(NamesrvDataSource):
    """The stream ``namesrv``, planned and not read: its rows are the parts of each batch."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.readStream.format``."""
        return "namesrv_parts"

    def schema(self) -> str:
        """One column, for ``Stager``.

        Raises:
            ValueError: An option is wrong.
        """
        super().schema()
        return f"{PART} BINARY NOT NULL"

    def streamReader(self, schema: StructType) -> PartsReader:  # noqa: ARG002, N802 - Spark's name
        """A reader that plans.

        Raises:
            ValueError: An option is wrong.
        """
        return PartsReader(ReadRequest.of_options(self.options, streaming=True))


class PartsReader(NamesrvStreamReader):
    """Plans batches, and gives each part on as a row."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The part itself, as Spark has sent it."""
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(partition)], pa.binary())], schema=_PARTS)


@dataclass(frozen=True, slots=True)
class Stager:
    """Reads one part of a batch and writes its rows. Travels to the tasks by pickle."""

    request: ReadRequest
    folder: Path
    """Where to write to; it is there."""
    ingested_at: datetime

    def __call__(self, part: bytes) -> list[str]:
        """Does so.

        Returns:
            The files, by their path below the folder.

        Raises:
            NamesrvError: The part could not be read whole.
            StagingError: It could not be written.
        """
        rows = NamesrvStreamReader(self.request).read(pickle.loads(part))  # noqa: S301 - of PartsReader, by Spark
        name = f"part-{secrets.token_hex(8)}.parquet"
        try:
            with _File(self.folder / f"{GOOD}-{name}") as good, _File(self.folder / f"{BAD}-{name}") as bad:
                for group in _groups(rows):
                    self._sort(group, good, bad)
        except OSError as error:
            raise StagingError(f"{self.folder} cannot be written to: {error.strerror or error}") from error
        return [file.path.name for file in (good, bad) if file.is_there]

    def _sort(self, rows: pa.RecordBatch, good: _File, bad: _File) -> None:
        """Writes the rows. Mostly none of them breaks a rule."""
        problems = problems_of(rows)
        stamped = rows.append_column(_STAMP, pa.repeat(pa.scalar(self.ingested_at, TIMESTAMP), rows.num_rows))
        if problems is None:
            good.write(stamped)
            return
        if problems.null_count:
            good.write(stamped.filter(problems.is_null()))
        bad.write(stamped.append_column(PROBLEM, problems).filter(problems.is_valid()))


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, in groups that are large enough to be checked and written quickly."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= ROW_GROUP_ROWS:
            yield _together(held)
            held = []
    if any(one.num_rows for one in held):
        yield _together(held)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


class _File:
    """A Parquet file that is there once it has rows; it is durable when the block is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = ExitStack()
        self._writer: pq.ParquetWriter | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has rows."""
        return self._writer is not None

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds a row group."""
        if self._writer is None:
            stream = self._open.enter_context(disk.open_new(self.path))
            self._open.callback(disk.sync, stream, self.path)
            self._writer = self._open.enter_context(pq.ParquetWriter(stream, rows.schema, compression="zstd"))
        self._writer.write_batch(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
