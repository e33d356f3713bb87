"""The history of every row (SCD type 2), computed from the change log: what was there, from when to when, why it ended.

A version ends by a change or removal of its key, or by a snapshot that does not have it. Then it was removed while
nobody looked, and the reason says so. Equal rows that follow one another, as a snapshot's after those of the changes,
are one version.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.change_rows import PUT, REMOVE
from route_pipeline.log.log_reader import snapshot_points
from route_pipeline.schemas import CHANGE_COLUMNS, READS

CHANGED = "CHANGED"
"""Reason of an end: the next version followed."""

NOT_IN_SNAPSHOT = "NOT_IN_SNAPSHOT"
"""Reason of an end: it was missing in a later snapshot; when and why it went is not known."""

KEY = ("namesrv", "table_name", "key")
"""Columns that identify the versions of one row."""

_META = (*KEY, "epoch", "revision", "changed_at", "op", "from_snapshot", "reason", "after_revision", "warm")
VALUES = tuple(column.name for column in CHANGE_COLUMNS if column.name not in _META)
"""Columns that a version has of its row."""

# Each registration renews these two, also one that changes nothing and so is not in the log.
_NOT_COMPARED = ("generation", "has_channel")
COMPARED = tuple(name for name in VALUES if name not in _NOT_COMPARED)
"""Columns whose change makes a new version."""


def history(changes: DataFrame) -> DataFrame:
    """The versions of all rows.

    Args:
        changes: The log, as :func:`route_pipeline.log.log_reader.read_changes` gives it.

    Returns:
        ``namesrv``, ``table_name``, ``key``, the columns of the row, ``valid_from_epoch``, ``valid_from_revision``,
        ``valid_from`` (by the name server's clock), ``seen_from`` (by this machine's), the same with ``_to`` and
        ``seen_to`` (null for what is still there), and ``end_reason``.
    """
    rows = changes.where(F.col("table_name") != READS).join(F.broadcast(snapshot_points(changes)), "namesrv", "left")
    rows = rows.withColumn("point", F.struct("epoch", "revision"))
    later = F.filter("snapshots", lambda mark: F.struct(mark["epoch"], mark["revision"]) > F.col("point"))
    rows = rows.withColumn("next_snapshot", F.get(later, F.lit(0))).drop("snapshots")
    numbered = _with_version_numbers(rows)
    ends = Window.partitionBy(*KEY, "version").orderBy(*_ORDER).rowsBetween(0, Window.unboundedFollowing)
    numbered = numbered.withColumn("next_snapshot", F.last("next_snapshot").over(ends))
    return _with_ends(numbered.where("is_first"))


def current(versions: DataFrame) -> DataFrame:
    """The versions that are still there."""
    return versions.where(F.col("end_reason").isNull())


def as_of(versions: DataFrame, at: datetime) -> DataFrame:
    """The versions that were there at a time, which has a time zone, by the clock of each name server."""
    moment = F.timestamp_micros(F.lit(round(at.timestamp() * 1_000_000)))
    return versions.where(
        (F.col("valid_from") <= moment) & (F.col("end_reason").isNull() | (F.col("valid_to") > moment))
    )


_ORDER = ("epoch", "revision", "from_snapshot")


def _with_version_numbers(rows: DataFrame) -> DataFrame:
    """Numbers the versions of each key. A removal is a version of its own; a repeated removal is not another one."""
    by_key = Window.partitionBy(*KEY).orderBy(*_ORDER)

    def before(column: Column | str) -> Column:
        return F.lag(column).over(by_key)

    rows = rows.withColumn("content", F.struct(*COMPARED)).withColumn("next_snapshot_point", _point("next_snapshot"))
    same = (before("op") == F.col("op")) & ((F.col("op") == REMOVE) | before("content").eqNullSafe(F.col("content")))
    goes_on = F.coalesce(same, F.lit(False)) & ~F.coalesce(before("next_snapshot_point") < F.col("point"), F.lit(False))
    rows = rows.withColumn("is_first", ~goes_on)
    return rows.withColumn("version", F.sum(F.col("is_first").cast("int")).over(by_key))


def _with_ends(firsts: DataFrame) -> DataFrame:
    by_key = Window.partitionBy(*KEY).orderBy(*_ORDER)
    after = F.lead(F.struct("point", "changed_at", "ingested_at", "op", "reason")).over(by_key)
    rows = firsts.withColumn("after", after).where(F.col("op") == PUT)
    point = F.col("after.point")
    unseen = F.col("next_snapshot").isNotNull() & (point.isNull() | (_point("next_snapshot") < point))
    end = F.when(
        unseen,
        _end(
            "next_snapshot.epoch", "next_snapshot.revision", "next_snapshot.at", "next_snapshot.seen", NOT_IN_SNAPSHOT
        ),
    ).when(
        point.isNotNull(),
        F.when(
            F.col("after.op") == PUT,
            _end("after.point.epoch", "after.point.revision", "after.changed_at", "after.ingested_at", CHANGED),
        ).otherwise(
            _end("after.point.epoch", "after.point.revision", "after.changed_at", "after.ingested_at", None),
        ),
    )
    return rows.withColumn("end", end).select(
        *KEY,
        *VALUES,
        F.col("epoch").alias("valid_from_epoch"),
        F.col("revision").alias("valid_from_revision"),
        F.col("changed_at").alias("valid_from"),
        F.col("ingested_at").alias("seen_from"),
        F.col("end.epoch").alias("valid_to_epoch"),
        F.col("end.revision").alias("valid_to_revision"),
        F.col("end.at").alias("valid_to"),
        F.col("end.seen").alias("seen_to"),
        F.col("end.reason").alias("end_reason"),
    )


def _end(epoch: str, revision: str, at: str, seen: str, reason: str | None) -> Column:
    """How a version ended; the reason of a removal is its own."""
    return F.struct(
        F.col(epoch).alias("epoch"),
        F.col(revision).alias("revision"),
        F.col(at).alias("at"),
        F.col(seen).alias("seen"),
        (F.coalesce("after.reason", F.lit("UNSPECIFIED")) if reason is None else F.lit(reason)).alias("reason"),
    )


def _point(snapshot: str) -> Column:
    return F.when(F.col(snapshot).isNotNull(), F.struct(f"{snapshot}.epoch", f"{snapshot}.revision"))
