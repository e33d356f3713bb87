"""Rows of Spark, written as files of a log by its tasks, on whatever store the log is."""

from __future__ import annotations

import json
import pickle
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from route_pipeline.log.data_files import NewFile, groups
from route_pipeline.log.protocol.commits import DataFile, file_from_json, file_to_json
from route_pipeline.stores.store import WORK, Store

ROW_GROUP_ROWS = 64 * 1024
_TARGET = "target"


@dataclass(frozen=True, slots=True)
class Target:
    """What the files are to be, and where."""

    store: Store
    table: str
    date: str
    made_by: str
    receipt: str
    """Path of the list of files that Spark's writer leaves for us: it has no other way to tell."""


@dataclass
class Written(WriterCommitMessage):
    """The files of a task."""

    files: list[DataFile]


class LogFilesSink(DataSource):
    """The format ``namesrv_log_sink``; :func:`write_files` uses it."""

    @classmethod
    def name(cls) -> str:
        return "namesrv_log_sink"

    def writer(self, schema: StructType, overwrite: bool) -> LogFilesWriter:  # noqa: ARG002 - Spark's
        return LogFilesWriter(pickle.loads(b64decode(self.options[_TARGET])))  # noqa: S301 - of write_files


class LogFilesWriter(DataSourceArrowWriter):
    """Writes the rows of each task to a file, and lists the files of those that succeeded."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        target = self._target
        with NewFile(target.store, target.table, target.date, target.made_by) as file:
            for group in groups(iterator, ROW_GROUP_ROWS):
                file.write(group)
        return Written(file.files())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Lists the files. Raises StoreError if the list could not be written."""
        files = [file_to_json(file) for message in messages if isinstance(message, Written) for file in message.files]
        self._target.store.create(self._target.receipt, json.dumps(files).encode())


def write_files(rows: DataFrame, store: Store, table: str, date: str, made_by: str) -> list[DataFile]:
    """Writes rows, in as many files as Spark has parts of them.

    Args:
        store: Where to; the folder of the day is there.
        date: Day of the rows.
        made_by: Kind of the commit that will add the files.

    Returns:
        The files of the tasks that succeeded.

    Raises:
        PySparkException, Py4JError: Spark failed.
        StoreError: The list of files cannot be read.
    """
    target = Target(store, table, date, made_by, f"{WORK}/{secrets.token_hex(8)}.json")
    rows.sparkSession.dataSource.register(LogFilesSink)
    planned = b64encode(pickle.dumps(target)).decode()
    rows.write.format(LogFilesSink.name()).mode("append").option(_TARGET, planned).save()
    entries = json.loads(store.read(target.receipt))
    store.delete(target.receipt)
    return [file_from_json(entry) for entry in entries]
