"""The log as a Delta table, beside the log itself: changes by a batch, a compaction or retention follow here.

The Parquet log stays what everything is computed from, so nothing but this needs Delta Lake. A file of the log can be
copied again: its rows take the place of those that the table has of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from pathlib import PurePosixPath

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.log_reader import read_files
from route_pipeline.log.protocol.commits import CHANGES, DataFile
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.sinks import SinkError
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.stores.local import LocalStore

PARTITIONS = ("date", "file")
"""Columns that the table is partitioned by: the day of the log, and the name of its file."""

Files = dict[str, set[str]]
"""Names of files by date."""


class DeltaMirror:
    """The Delta table of a log, ``DIR/delta``."""

    def __init__(self, spark: SparkSession, log: RouteLog) -> None:
        """Opens the table, which need not be there yet.

        Args:
            spark: A session with :func:`route_pipeline.log.sinks.session_settings`.

        Raises:
            SinkError: Spark has no Delta Lake, or the table cannot be read.
        """
        self._spark = spark
        self._log = log
        # Spark's name for S3 is that of its connector, which Delta Lake needs there.
        table = log.store.uri("delta")
        self.path = f"file:{table}" if isinstance(log.store, LocalStore) else table.replace("s3://", "s3a://", 1)
        self._in_table()

    def catch_up(self) -> int:
        """Makes the table equal to the log. Nobody else may write to the table meanwhile.

        Returns:
            Days of which something was copied or removed.

        Raises:
            SinkError: Spark failed; the days before it are done, and a repetition goes on there.
            StoreError: The log is damaged.
        """
        by_name = {_name(file): file for file in self._log.state().files_of(CHANGES)}
        in_log: Files = defaultdict(set)
        for name, file in by_name.items():
            in_log[file.date].add(name)
        in_table = self._in_table()
        days = [day for day in sorted(in_log.keys() | in_table.keys()) if in_log[day] != in_table[day]]
        try:
            for day in days:
                if not in_log[day]:
                    self._write(self._spark.read.format("delta").load(self.path).limit(0), f"date = '{day}'")
                elif in_table[day] < in_log[day]:
                    self.copy(day, [by_name[name] for name in sorted(in_log[day] - in_table[day])])
                else:  # it was compacted: other files have the rows now
                    self._write(self._rows([by_name[name] for name in sorted(in_log[day])]), f"date = '{day}'")
        except SPARK_ERRORS as error:
            raise self._error(error) from error
        return len(days)

    def copy(self, day: str, files: Sequence[DataFile]) -> None:
        """Copies files of a day, in place of what the table has of them."""
        names = ", ".join(f"'{_name(file)}'" for file in files)
        self._write(self._rows(files), f"date = '{day}' and file in ({names})")

    def _rows(self, files: Sequence[DataFile]) -> DataFrame:
        each = [
            read_files(self._spark, self._log, [file]).withColumns(
                {"date": F.lit(file.date), "file": F.lit(_name(file))}
            )
            for file in files
        ]
        return reduce(DataFrame.unionByName, each)

    def _write(self, rows: DataFrame, where: str) -> None:
        """Puts rows in the place of those for which something holds."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        writer = writer.option("mergeSchema", "true")  # a table of an older version lacks the newest columns
        writer.partitionBy(*PARTITIONS).save(self.path)

    def _in_table(self) -> Files:
        found: Files = defaultdict(set)
        try:
            if not self._log.store.files("delta/_delta_log"):
                self._spark.sql("SHOW TABLES").collect()  # loads Delta's catalog, which fails where it is missing
                return found
            table = self._spark.read.format("delta").load(self.path)
            for day, name in table.select(*PARTITIONS).distinct().collect():
                found[day].add(name)
        except SPARK_ERRORS as error:
            raise self._error(error) from error
        return found

    def _error(self, error: Exception) -> SinkError:
        return SinkError(f"sink delta: {one_line(error)}")


def _name(file: DataFile) -> str:
    return PurePosixPath(file.path).stem
