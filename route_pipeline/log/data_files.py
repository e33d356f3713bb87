"""Data files: Parquet by Arrow, with the statistics that engines skip files by. For threads and for Spark's tasks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from route_pipeline.arrow_schemas import TIMESTAMP, arrow_schema
from route_pipeline.log.place import FILE_SCHEMA, QUARANTINE, READS, ROWS, STATISTICS, Place, failures, sync
from route_pipeline.quality import problems_of
from route_pipeline.schemas import CHANGES
from route_pipeline.schemas import READS as READS_TABLE

TARGET_BYTES = 128 * 1024 * 1024
"""Size at which another file is begun."""

GROUP_ROWS = 64 * 1024
"""Rows that are checked and written at once, some 10 MB. Fewer make larger files, which take longer to read."""

Add = dict[str, Any]
"""What delta-rs needs to know of a new file: plain values, so that it can travel from a task to the driver."""

ReadRow = dict[str, Any]
"""A row in which the reader says what it read."""


class NewFile:
    """A Parquet file of one partition. It is of the log once a commit has it."""

    def __init__(self, place: Place, kind: str, at: datetime) -> None:
        day = at.astimezone(UTC).date()
        folder = f"kind={kind}/day={day}"
        self._place, self._path = place, f"{folder}/{secrets.token_hex(16)}.parquet"
        self._partition = {"kind": kind, "day": str(day)}
        with failures(f"{place.url} cannot be written to"):
            filesystem = place.filesystem()
            if place.local is not None:
                filesystem.create_dir(folder, recursive=True)
            self._sink = filesystem.open_output_stream(self._path)
            self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, compression="zstd", write_batch_size=GROUP_ROWS)

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds a row group."""
        with failures(f"{self._place.url} cannot be written to"):
            self._writer.write_batch(rows)

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def close(self) -> Add:
        """Ends the file; on a disk it is durable then."""
        with failures(f"{self._place.url} cannot be written to"):
            self._writer.close()
            size = self.size
            self._sink.close()
            if self._place.local is not None:
                path = self._place.local / "changes" / self._path
                sync(path, path.parent)
        return {
            "path": self._path,
            "size": size,
            "partition_values": self._partition,
            "modification_time": int(time.time() * 1000),
            "data_change": True,
            "stats": statistics_of(self._writer.writer.metadata),
        }


def statistics_of(metadata: pq.FileMetaData) -> str:
    """The statistics of a file in Delta's JSON. A column has none if a row group says nothing about it."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if name not in STATISTICS:
                continue
            if found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                lows[name] = min(lows.get(name, found.min), found.min)
                highs[name] = max(highs.get(name, found.max), found.max)
            elif found.null_count != group.num_rows:
                unknown.add(name)
    of_all = {"minValues": lows, "maxValues": highs, "nullCount": nulls}
    known = {kind: {name: of[name] for name in of if name not in unknown} for kind, of in of_all.items()}
    return json.dumps({"numRecords": metadata.num_rows, **known}, default=_of_time)


def _of_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class BatchRows:
    """The rows of a batch, sorted by kind, which go to files as they come."""

    place: Place
    at: datetime  # when the batch is written, by the clock of this machine
    files: list[Add] = field(default_factory=list)
    reads: list[ReadRow] = field(default_factory=list)  # what the reader says of its reads: few rows, for the commit
    rows: int = 0
    aside: int = 0  # rows that break a rule and were quarantined
    _open: dict[str, NewFile] = field(default_factory=dict)

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Takes rows of table ``changes``, in groups that are large enough to be checked quickly. Ends the files."""
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch)
            if sum(one.num_rows for one in group) >= GROUP_ROWS:
                self._add(group)
                group = []
        if any(one.num_rows for one in group):
            self._add(group)
        for kind in list(self._open):
            self._end(kind)

    def _add(self, group: list[pa.RecordBatch]) -> None:
        (rows,) = pa.Table.from_batches(group).combine_chunks().to_batches()
        problems = problems_of(rows)
        own = (
            pa.repeat(pa.scalar(self.at, TIMESTAMP), len(rows)),
            pa.nulls(len(rows), pa.int64()),
            pa.nulls(len(rows), pa.string()) if problems is None else problems,
        )
        stamped = pa.RecordBatch.from_arrays(
            [*(rows[field.name].cast(field.type) for field in arrow_schema(CHANGES)), *own], schema=FILE_SCHEMA
        )
        if problems is not None:
            bad = stamped.filter(problems.is_valid())
            self.aside += bad.num_rows
            self._write(QUARANTINE, bad)
            stamped = stamped.filter(problems.is_null())
        of_reader = pc.equal(stamped["table_name"], READS_TABLE)
        if pc.any(of_reader).as_py():
            self.reads += stamped.filter(of_reader).to_pylist()
            stamped = stamped.filter(pc.invert(of_reader))
        if stamped.num_rows:
            self.rows += stamped.num_rows
            self._write(ROWS, stamped)

    def _write(self, kind: str, rows: pa.RecordBatch) -> None:
        if kind not in self._open:
            self._open[kind] = NewFile(self.place, kind, self.at)
        self._open[kind].write(rows)
        if self._open[kind].size >= TARGET_BYTES:
            self._end(kind)

    def _end(self, kind: str) -> None:
        self.files.append(self._open.pop(kind).close())


def write_reads(place: Place, rows: list[ReadRow], batch: int, at: datetime) -> Add:
    """The file of a batch's rows of ``reads``. The committing process writes it: the rows have the batch's number."""
    file = NewFile(place, READS, at)
    file.write(pa.RecordBatch.from_pylist([row | {"batch": batch} for row in rows], FILE_SCHEMA))
    return file.close()
