"""The format ``namesrv_log`` for ``writeStream``: tasks write the files, and the driver commits them to a route log.

A batch that Spark repeats is in the log once: its number is in the commit, for each query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from route_pipeline.log.data_files import Add, BatchRows, ReadRow
from route_pipeline.log.place import LogError, Place
from route_pipeline.log.route_log import ConflictError, RouteLog
from route_pipeline.schemas import CHANGES, columns_of
from route_pipeline.spark_errors import text_first


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    files: list[Add]
    reads: list[ReadRow]
    query: str


class RouteLogSink(DataSource):
    """A route log to which a stream is written."""

    @classmethod
    def name(cls) -> str:
        return "namesrv_log"

    def streamWriter(self, schema: StructType, overwrite: bool) -> RouteLogWriter:  # noqa: N802 - Spark's name
        """A writer to the log at ``path``; options besides are the store's. Raises ValueError or LogError."""
        with text_first(ValueError, LogError):
            if overwrite:
                raise ValueError("the route log only grows: outputMode must be append")
            options = {name.lower(): value for name, value in self.options.items()}
            path, _ = options.pop("path", ""), options.pop("checkpointlocation", "")
            if not path:
                raise ValueError("option 'path' is missing: the folder or URL of the route log")
            missing = [column.name for column in columns_of(CHANGES) if column.name not in schema.names]
            if missing:
                raise ValueError(
                    f"the stream has no column {missing[0]!r}: write the table {CHANGES} of namesrv as it is"
                )
            place = Place(path, options)
            RouteLog(place)  # raises its errors before anything is read
        return RouteLogWriter(place)


class RouteLogWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each task, and commits those of a batch."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None
        rows = BatchRows(self._place, datetime.now(UTC))
        with text_first(LogError):
            rows.add_all(iterator)
        return Written(rows.files, rows.reads, task.getLocalProperty("sql.streaming.queryId") or "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Makes the files of the tasks a batch of the log. Raises LogError."""
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        with text_first(LogError):
            self._append(written, batchId)

    def _append(self, written: list[Written], number: int) -> None:
        query = written[0].query
        log = RouteLog(self._place, run=f"spark-{query}")
        theirs, ours = f"spark/{query}", f"writer/{query}"
        done = log.table.transaction_version(theirs)
        if done is not None and done >= number:
            return  # the answer was lost, or Spark died before it noted it
        mine = log.table.transaction_version(ours)
        if mine is not None and mine != log.batch:
            raise ConflictError(
                f"another program has written to {self._place.url} since: start this stream with a new checkpoint"
            )
        files = [file for one in written for file in one.files]
        reads = [read for one in written for read in one.reads]
        if files or reads:
            log.append(files, reads, {theirs: number, ours: log.batch + 1})
