"""The log as a Delta table, beside the log itself: changes by a batch, a compaction or retention follow here.

The Parquet log stays what everything is computed from, so nothing but this needs Delta Lake. A batch is copied when it
is whole and can be copied again: its rows take the place of those that the table has of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from route_pipeline.log.sinks import SinkError
from route_pipeline.log.store import RouteStore
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

PARTITIONS = ("date", "run", "batch_id")
"""Columns that the table is partitioned by: the folders of the log."""

Batches = dict[str, set[tuple[str, str]]]
"""Runs and batches by date."""


class DeltaMirror:
    """The Delta table of a log, ``DIR/delta``."""

    def __init__(self, spark: SparkSession, store: RouteStore) -> None:
        """Opens the table, which need not be there yet.

        Args:
            spark: A session with :func:`route_pipeline.log.sinks.session_settings`.
            store: The log.

        Raises:
            SinkError: Spark has no Delta Lake, or the table cannot be read.
        """
        self._spark = spark
        self._store = store
        self._path = f"file:{store.delta}"
        self._in_table()

    def catch_up(self) -> int:
        """Makes the table equal to the log. Nobody else may write to either meanwhile.

        Returns:
            Days of which something was copied or removed.

        Raises:
            SinkError: Spark failed; the days before it are done, and a repetition goes on there.
        """
        in_log, in_table = self._in_log(), self._in_table()
        days = [day for day in sorted(in_log.keys() | in_table.keys()) if in_log[day] != in_table[day]]
        try:
            for day in days:
                if not in_log[day]:
                    self._write(self._spark.read.format("delta").load(self._path).limit(0), f"date = '{day}'")
                elif in_table[day] < in_log[day]:
                    self._copy(day, in_log[day] - in_table[day])
                else:  # it was compacted: other folders have the rows now
                    self._replace(f"date = '{day}'", [self._store.changes / f"date={day}"])
        except SPARK_ERRORS as error:
            raise self._error(error) from error
        return len(days)

    def _copy(self, day: str, batches: set[tuple[str, str]]) -> None:
        of_batches = " or ".join(f"(run = '{run}' and batch_id = '{number}')" for run, number in sorted(batches))
        folder = self._store.changes / f"date={day}"
        folders = [folder / f"run={run}" / f"batch_id={number}" for run, number in sorted(batches)]
        self._replace(f"date = '{day}' and ({of_batches})", folders)

    def _replace(self, where: str, folders: Iterable[Path]) -> None:
        reader = self._spark.read.option("basePath", f"file:{self._store.changes}")
        self._write(reader.parquet(*(f"file:{folder}" for folder in folders)).drop("problem"), where)

    def _write(self, rows: DataFrame, where: str) -> None:
        """Puts rows in the place of those for which something holds."""
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
        writer.partitionBy(*PARTITIONS).save(self._path)

    def _in_log(self) -> Batches:
        found: Batches = defaultdict(set)
        for batch in self._store.whole_batches():
            day, run, number = (part.partition("=")[2] for part in batch.parts[-3:])
            found[day].add((run, number))
        return found

    def _in_table(self) -> Batches:
        found: Batches = defaultdict(set)
        try:
            if not self._store.delta.exists():
                self._spark.sql("SHOW TABLES").collect()  # loads Delta's catalog, which fails where it is missing
                return found
            table = self._spark.read.format("delta").load(self._path)
            for day, run, number in table.select(*PARTITIONS).distinct().collect():
                found[day].add((run, number))
        except SPARK_ERRORS as error:
            raise self._error(error) from error
        return found

    def _error(self, error: Exception) -> SinkError:
        return SinkError(f"sink delta: {one_line(error)}")
