"""Retention: days that are too old lose the versions that ended in them.

Of each key, the version that was there at the end of these days stays, so the history from then on is the same.
"""

from __future__ import annotations

from datetime import date, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.compaction import CompactionError
from route_pipeline.log.data_files import folder_of
from route_pipeline.log.history import KEY, current, history
from route_pipeline.log.log_reader import read_files
from route_pipeline.log.protocol.commits import CHANGES, RETENTION
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import ConflictError, LogWriter
from route_pipeline.log.spark_files import write_files
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.stores.store import StoreUnavailableError


def drop_old(spark: SparkSession, log: RouteLog, today: date, keep_days: int) -> tuple[str, ...]:
    """Puts the rows that outlasted the old days in place of these days.

    Args:
        log: The log. Others may read it and append to it meanwhile.
        keep_days: How many days before today keep every change.

    Returns:
        The days of which only what outlasted them is left; none if it was so before.

    Raises:
        StoreError: The log cannot be written to.
        CompactionError: Spark or the store failed; the log is as it was.
    """
    writer = LogWriter(log)
    oldest = f"{today - timedelta(days=keep_days):%Y-%m-%d}"
    old = [file for file in writer.state.files_of(CHANGES) if file.date < oldest]
    if all(file.made_by == RETENTION for file in old):
        return ()
    last = old[-1].date
    try:
        rows = read_files(spark, log, old)
        lasting = current(history(rows)).select(
            *KEY, F.col("valid_from_epoch").alias("epoch"), F.col("valid_from_revision").alias("revision")
        )
        # The first row of a version, and no snapshots: without a snapshot, no row counts as missing in it.
        kept = rows.where(F.col("op") == "put").join(lasting, [*KEY, "epoch", "revision"], "left_semi")
        kept = kept.dropDuplicates([*KEY, "epoch", "revision"]).select(*rows.columns)
        log.store.make_folder(folder_of(last))
        files = write_files(kept, log.store, CHANGES, last, RETENTION)
        writer.append(RETENTION, add=files, remove=[file.path for file in old])
    except SPARK_ERRORS as error:
        raise CompactionError(f"{log.url} cannot be compacted: {one_line(error)}") from error
    except (ConflictError, StoreUnavailableError) as error:
        raise CompactionError(f"{log.url} cannot be compacted: {error}") from error
    return tuple(sorted({file.date for file in old}))
