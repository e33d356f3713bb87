"""Compaction, which keeps the log small: one folder of few files for each past day, and nothing older than wanted.

A day that is compacted has the same rows. A day that is too old loses the versions that ended in it. Of each key, the
version that was there at the end of the day stays, so the history from then on is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.change_log import read_parquet
from route_pipeline.log.day_swap import replace_days, staged_day
from route_pipeline.log.history import KEY, current, history
from route_pipeline.log.store import COMPACTED_RUN, LASTING_RUN, RouteStore
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

ROWS_A_FILE = 2_000_000
"""About 20 MB of topic queues."""


_DONE = ([f"run={COMPACTED_RUN}"], [f"run={LASTING_RUN}"])


class CompactionError(Exception):
    """A day could not be compacted; the log is as it was. The text is one line."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The outcome of a compaction."""

    days: tuple[str, ...]
    """Days whose files were put together."""
    dropped_days: tuple[str, ...]
    """Days of which only what outlasted them is left."""
    files_before: int
    """Files of these days before it."""
    files_after: int
    """Files of these days after it."""


def compact(spark: SparkSession, store: RouteStore, today: date, keep_days: int | None = None) -> Compacted:
    """Compacts the days that are over, and drops what is too old.

    Readers that listed the files of a day before it was compacted may miss them: run it when nobody reads.

    Args:
        spark: A session.
        store: The log.
        today: The day that is not over, UTC; it is left as it is.
        keep_days: How many days before today keep every change; None: all.

    Raises:
        StoreError: Another process writes to the log.
        CompactionError: Spark failed, or the disk.
    """
    with store.writing():
        folders = sorted(store.changes.glob("date=*"))
        before_today = (folder for folder in folders if folder.name < f"date={today:%Y-%m-%d}")
        over = [folder for folder in before_today if store.is_whole(folder)]
        files_before = sum(map(_file_count, over))
        try:
            old: list[Path] = []
            if keep_days is not None:
                oldest = f"date={today - timedelta(days=keep_days):%Y-%m-%d}"
                old = [folder for folder in over if folder.name < oldest]
            if old and _runs(old) != [f"run={LASTING_RUN}"]:
                _drop(spark, store, old)
            days = [folder for folder in over if folder not in old and _runs([folder]) not in _DONE]
            for folder in days:
                rows = read_parquet(spark, folder).drop("run", "batch_id")
                _replace(store, [folder], rows, COMPACTED_RUN)
        except SPARK_ERRORS as error:
            raise CompactionError(f"{store.folder} cannot be compacted: {one_line(error)}") from error
        except OSError as error:
            raise CompactionError(f"{store.folder} cannot be compacted: {error.strerror}") from error
        files_after = sum(_file_count(folder) for folder in over if folder.exists())
    return Compacted(
        tuple(folder.name.removeprefix("date=") for folder in days),
        tuple(folder.name.removeprefix("date=") for folder in old),
        files_before,
        files_after,
    )


def _drop(spark: SparkSession, store: RouteStore, old: list[Path]) -> None:
    """Puts the rows that outlasted the old days in place of the last of these days, and removes the others."""
    rows = spark.read.option("basePath", f"file:{store.changes}").parquet(*(f"file:{folder}" for folder in old))
    rows = rows.drop("date", "run", "batch_id")
    lasting = current(history(rows)).select(
        *KEY, F.col("valid_from_epoch").alias("epoch"), F.col("valid_from_revision").alias("revision")
    )
    # The first row of a version, and no snapshots: without a snapshot, no row counts as missing in it.
    kept = rows.where(F.col("op") == "put").join(lasting, [*KEY, "epoch", "revision"], "left_semi")
    kept = kept.dropDuplicates([*KEY, "epoch", "revision"])
    _replace(store, old, kept, LASTING_RUN)


def _replace(store: RouteStore, days: list[Path], rows: DataFrame, run: str) -> None:
    """Writes rows aside and puts them in place of days, at the name of the last of them."""
    staged = staged_day(store.work, days[-1].name)
    target = staged / f"run={run}" / "batch_id=0"
    rows.coalesce(max(1, rows.count() // ROWS_A_FILE)).write.parquet(f"file:{target}")
    replace_days(store.changes, store.work, [day.name for day in days])


def _runs(folders: list[Path]) -> list[str]:
    return sorted(run.name for folder in folders for run in folder.glob("run=*"))


def _file_count(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.parquet"))
