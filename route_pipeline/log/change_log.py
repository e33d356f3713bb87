"""The change log, read back."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.store import RouteStore


def read_parquet(spark: SparkSession, folder: Path) -> DataFrame:
    """A folder of Parquet, in which what an older version did not write is null.

    The path has its scheme, because a cluster's default file system may be another one.
    """
    return spark.read.option("mergeSchema", "true").parquet(f"file:{folder}")


def read_changes(spark: SparkSession, store: RouteStore) -> DataFrame:
    """All rows of the log: those of the table ``changes``, and ``ingested_at``.

    Raises:
        StoreError: There is no ingest yet.
    """
    store.check_not_empty()
    return read_parquet(spark, store.changes).drop("date", "run", "batch_id", "problem")


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
