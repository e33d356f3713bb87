"""Readers of the change log: by Spark, and by Arrow from any store."""

from __future__ import annotations

import io
import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from route_pipeline.log.data_files import LOG_DDL, LOG_SCHEMA, as_rows
from route_pipeline.log.protocol.commits import CHANGES, DataFile, LogError, was_cut
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.store import Store

# A Spark data source that reads the files of a log by Arrow, from whatever store they are on.

TASK_BYTES = 16 * 1024 * 1024
"""About as much one task reads: some two million rows, or many small files."""
WHOLE_BYTES = 4 * 1024 * 1024
"""A file of up to this size is fetched whole, together with others; of a larger one, a row group at a time."""
_AT_ONCE = 16
_FILES = "files"


@dataclass(frozen=True)
class FilesPart(InputPartition):
    """The files of one task."""

    store: Store
    files: tuple[DataFile, ...]


class LogFilesSource(DataSource):
    """The format ``namesrv_log_files``; :func:`read_by_arrow` uses it."""

    @classmethod
    def name(cls) -> str:
        return "namesrv_log_files"

    def schema(self) -> str:
        return LOG_DDL

    def reader(self, schema: StructType) -> LogFilesReader:  # noqa: ARG002 - Spark's
        store, files = pickle.loads(b64decode(self.options[_FILES]))  # noqa: S301 - of read_by_arrow
        return LogFilesReader(store, files)


class LogFilesReader(DataSourceReader):
    """Shares the files out among tasks, and reads them there."""

    def __init__(self, store: Store, files: list[DataFile]) -> None:
        self._store = store
        self._files = files

    def partitions(self) -> list[InputPartition]:
        """Tasks of about the same size."""
        parts: list[InputPartition] = []
        held: list[DataFile] = []
        for file in self._files:
            held.append(file)
            if sum(one.size for one in held) >= TASK_BYTES:
                parts.append(FilesPart(self._store, tuple(held)))
                held = []
        if held or not parts:
            parts.append(FilesPart(self._store, tuple(held)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's files.

        Raises:
            LogError: A file was cut or changed.
            StoreError: A file is missing, or the store fails.
        """
        assert isinstance(partition, FilesPart)
        for rows in read_rows(partition.store, partition.files):
            yield as_rows(rows, LOG_SCHEMA)


def read_by_arrow(spark: SparkSession, store: Store, files: list[DataFile]) -> DataFrame:
    spark.dataSource.register(LogFilesSource)
    planned = b64encode(pickle.dumps((store, files))).decode()
    return spark.read.format(LogFilesSource.name()).option(_FILES, planned).load()


def read_rows(store: Store, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """The rows of files, with the columns that each has.

    Raises:
        LogError: A file was cut or changed.
        StoreError: A file is missing, or the store fails.
    """
    small = [file for file in files if file.size <= WHOLE_BYTES]
    for start in range(0, len(small), _AT_ONCE):
        some = small[start : start + _AT_ONCE]
        for file, found in zip(some, store.read_many([file.path for file in some]), strict=True):
            content = store.read(file.path) if found is None else found  # one that is missing is told by its name
            if len(content) != file.size:
                raise LogError(was_cut(store.uri(file.path), len(content), file.size))
            yield from _rows_of(store.uri(file.path), io.BytesIO(content))
    for file in files:
        if file.size > WHOLE_BYTES:
            with store.open(file.path) as stream:
                yield from _rows_of(store.uri(file.path), stream)


def _rows_of(name: str, content: BinaryIO) -> Iterator[pa.RecordBatch]:
    try:
        yield from pq.ParquetFile(content).iter_batches()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's; Arrow's own has no number, for bytes that it cannot unpack
        text = str(error).partition("\n")[0]
        raise LogError(f"{name} was cut or changed after it was written: it cannot be read: {text}") from None


# The change log, read back by Spark.


def read_changes(spark: SparkSession, log: RouteLog) -> DataFrame:
    """All rows of the log at this moment: those of the table ``changes``, and ``ingested_at``.

    Raises:
        StoreError: There is no ingest yet, or the log is damaged.
    """
    found = log.state()
    log.check_not_empty(found)
    return read_files(spark, log, found.files_of(CHANGES))


def read_files(spark: SparkSession, log: RouteLog, files: list[DataFile]) -> DataFrame:
    """The rows of some files of the table ``changes``.

    Spark reads those of a file system by itself. Those of an object store are read by Arrow, with the client that wrote
    them, so that Spark needs neither a connector nor settings of its own for it.
    """
    if not isinstance(log.store, LocalStore):
        return read_by_arrow(spark, log.store, files)
    if not files:
        return spark.createDataFrame([], LOG_DDL)
    # The names of folders in the path are no columns, as recursiveFileLookup makes Spark know.
    reader = spark.read.schema(LOG_DDL).option("recursiveFileLookup", "true")
    # The path has its scheme, because a cluster's default file system may be another one.
    return reader.parquet(*(f"file:{log.store.uri(file.path)}" for file in files))


def snapshot_points(changes: DataFrame) -> DataFrame:
    """The snapshots in the log: whatever had no row in one of them was not there.

    Returns:
        A row for each name server: ``namesrv`` and ``snapshots``, an ascending array of (epoch, revision, at, seen).
    """
    marks = changes.where((F.col("table_name") == "reads") & (F.col("op") == "snapshot"))
    points = marks.groupBy("namesrv", "epoch", "revision").agg(
        F.min("changed_at").alias("at"), F.min("ingested_at").alias("seen")
    )
    snapshots = F.sort_array(F.collect_list(F.struct("epoch", "revision", "at", "seen")))
    return points.groupBy("namesrv").agg(snapshots.alias("snapshots"))
