"""The change log, read back by Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.arrow_source import read_by_arrow
from route_pipeline.log.data_files import LOG_DDL
from route_pipeline.log.protocol.commits import CHANGES, DataFile
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.stores.local import LocalStore


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
