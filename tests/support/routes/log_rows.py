"""Rows of a log, and batches of them, without a name server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from route_pipeline.arrow_schemas import TIMESTAMP
from route_pipeline.change_rows import reader_row
from route_pipeline.log.data_files import STAMP, NewFile, folder_of
from route_pipeline.log.protocol.commits import BATCH, CHANGES, DataFile
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.log.protocol.writer import Batch, LogWriter
from route_pipeline.stores.store import Store

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


def rows(*revisions: int, at: datetime = NOON) -> pa.RecordBatch:
    """One row for each revision."""
    read = {"namesrv": "ns-a", "epoch": "0001", "changed_at": 1_767_355_200_000_000, "op": "changes", "key": "a:1"}
    tables = [
        pa.Table.from_batches([reader_row(read | {"revision": one, "after_revision": one - 1})]) for one in revisions
    ]
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    return batch.append_column(STAMP, pa.repeat(pa.scalar(at, TIMESTAMP), len(revisions)))


def write(store: Store, *revisions: int, days: int = 0) -> list[DataFile]:
    """A data file of such rows."""
    at = NOON + timedelta(days=days)
    date = f"{at:%Y-%m-%d}"
    store.make_folder(folder_of(date))
    with NewFile(store, CHANGES, date, BATCH) as file:
        file.write(rows(*revisions, at=at))
    return file.files()


def append(writer: LogWriter, *revisions: int, days: int = 0) -> None:
    """A batch of such rows, committed."""
    number = writer.state.batch + 1
    at = NOON + timedelta(days=days)
    summary = Summary("r1", number, at, "ns-a", "0001", max(revisions), len(revisions), 0, "changes", None)
    position = {"revision": max(revisions)}
    writer.append_batch(Batch("r1", number, position, (summary,)), write(writer.log.store, *revisions, days=days))


def revisions_of(log: RouteLog) -> list[int]:
    """The revisions that the files of a log have at this moment."""
    return sorted(revision for file in log.state().files_of(CHANGES) for revision in _read(log.store, file))


def _read(store: Store, file: DataFile) -> Sequence[int]:
    found: list[int] = pq.read_table(pa.BufferReader(store.read(file.path)))["revision"].to_pylist()
    return found
