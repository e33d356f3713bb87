"""Data files: Parquet under a name that is used for the first time. They count once a commit has them."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from route_pipeline.arrow_schemas import TIMESTAMP, arrow_schema
from route_pipeline.log.protocol.commits import DataFile, Span
from route_pipeline.schemas import CHANGES, spark_ddl
from route_pipeline.stores.store import Store

INGESTED_AT = "ingested_at"
"""Column of the log: when the batch of a row was written, by the clock of the machine that Spark's driver is on."""

STAMP = pa.field(INGESTED_AT, TIMESTAMP, nullable=False)
LOG_SCHEMA = arrow_schema(CHANGES).append(STAMP)
"""The columns of the log's rows."""
LOG_DDL = f"{spark_ddl(CHANGES)}, {INGESTED_AT} TIMESTAMP NOT NULL"
"""The same for Spark."""

DATA = "data"
"""Folder of the data files; below it one for each day."""


class NewFile:
    """A Parquet file that is there once it has rows; it is durable when the block is left."""

    def __init__(self, store: Store, table: str, date: str, made_by: str) -> None:
        """Makes nothing yet. ``made_by`` is the kind of the commit that will add the file."""
        self._store = store
        self._path = f"{DATA}/{date}/{secrets.token_hex(16)}.parquet"
        self._of = (table, date, made_by)
        self._open = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._ends: dict[tuple[str, str], list[int]] = defaultdict(list)

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds a row group."""
        if self._writer is None:
            stream = self._open.enter_context(self._store.open_new(self._path))
            self._writer = self._open.enter_context(pq.ParquetWriter(stream, rows.schema, compression="zstd"))
        self._writer.write_batch(rows)
        self._rows += rows.num_rows
        for (namesrv, epoch), (first, last, _) in counted(rows).items():
            self._ends[namesrv, epoch] += [first, last]

    def files(self) -> list[DataFile]:
        """The file, once the block was left; none if it had no rows."""
        if self._writer is None:
            return []
        spans = (Span(*life, min(ends), max(ends)) for life, ends in sorted(self._ends.items()))
        table, date, made_by = self._of
        size = self._store.info(self._path).size
        return [DataFile(self._path, table, date, self._rows, size, made_by, tuple(spans))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def folder_of(date: str) -> str:
    return f"{DATA}/{date}"


def counted(rows: pa.RecordBatch) -> dict[tuple[str, str], tuple[int, int, int]]:
    """First and last revision, and number of rows, of each life of a name server. None for other tables."""
    if not {"namesrv", "epoch", "revision"} <= set(rows.schema.names):
        return {}
    lives = pa.Table.from_batches([rows.select(["namesrv", "epoch", "revision"])]).group_by(["namesrv", "epoch"])
    found = lives.aggregate([("revision", "min"), ("revision", "max"), ([], "count_all")]).to_pylist()
    return {
        (life["namesrv"], life["epoch"]): (life["revision_min"], life["revision_max"], life["count_all"])
        for life in found
    }


def groups(batches: Iterable[pa.RecordBatch], least_rows: int) -> Iterable[pa.RecordBatch]:
    """The rows, in groups that are large enough to be checked and written quickly."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= least_rows:
            yield _together(held)
            held = []
    if any(one.num_rows for one in held):
        yield _together(held)


def as_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with exactly the columns of a schema: what an older program did not write is null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    (batch,) = pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()
    return batch
