"""Reads the snapshots of name servers into a folder of Parquet tables.

Each name server is read once, by one stream that carries all of its tables: three streams would be at three revisions.
Spark writes that stream down as one wide table and splits it afterwards. Spark's cache in its place was no faster, and
would not do: when it loses a block, Spark reads again, at a later revision, and the tables would not fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from groundwork.endpoints import Endpoint
from route_pipeline.data_source import FORMAT
from route_pipeline.schemas import (
    BROKERS,
    CLUSTERS,
    ORIGIN_COLUMNS,
    ROW_COLUMNS,
    SNAPSHOTS,
    TOPIC_QUEUES,
    WHOLE_SNAPSHOT,
)
from route_pipeline.snapshot_reader import Timeouts
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.store import IngestInProgress, RouteStore

_COUNTED_TABLES = (TOPIC_QUEUES, BROKERS, CLUSTERS)


class IngestError(Exception):
    """An ingest failed and left nothing behind; the text is one line."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """An ingest that is done."""

    ingest_id: str
    """Its id: the time it began, UTC."""
    namesrvs: tuple[str, ...]
    """Names of the name servers that were read, sorted."""
    rows: dict[str, int]
    """Rows written, by table."""


def ingest(
    spark: SparkSession,
    endpoints: Iterable[Endpoint],
    store: RouteStore,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> IngestResult:
    """Reads all tables of each name server at one revision of it, and writes them; all or nothing.

    Args:
        spark: A session that knows the format ``namesrv``.
        endpoints: Where the name servers listen.
        store: Where to write to.
        timeouts: How long to wait for a name server.
        now: The clock.

    Raises:
        IngestError: A name server could not be read whole, two endpoints are the same name server, or Spark failed.
        StoreError: The folder cannot be written to.
    """
    with store.new_ingest(now()) as progress:
        try:
            result = _write(spark, list(endpoints), progress, timeouts)
        except SPARK_ERRORS as error:
            raise IngestError(one_line(error)) from error
        progress.commit()
    return result


def read_parquet(spark: SparkSession, folder: Path) -> DataFrame:
    """A table's folder. The scheme is said, because a cluster's default file system may be another one."""
    return spark.read.parquet(f"file:{folder}")


def _write(
    spark: SparkSession, endpoints: list[Endpoint], progress: IngestInProgress, timeouts: Timeouts
) -> IngestResult:
    reader = spark.read.format(FORMAT).options(
        endpoints=",".join(str(endpoint) for endpoint in endpoints),
        table=WHOLE_SNAPSHOT,
        connectTimeoutSeconds=str(timeouts.connect),
        timeoutSeconds=str(timeouts.total),
    )
    staged = progress.folder(WHOLE_SNAPSHOT)
    reader.load().write.parquet(f"file:{staged}")
    whole = read_parquet(spark, staged)
    for table in ROW_COLUMNS:
        rows = whole.where(F.col(table).isNotNull())
        rows = rows.select(*(column.name for column in ORIGIN_COLUMNS), f"{table}.*")
        rows.write.parquet(f"file:{progress.folder(table)}")
    snapshots = read_parquet(spark, progress.folder(SNAPSHOTS)).collect()
    _check_names(endpoints, snapshots)
    written = {table: read_parquet(spark, progress.folder(table)).count() for table in _COUNTED_TABLES}
    sent = {table: sum(snapshot[table] for snapshot in snapshots) for table in _COUNTED_TABLES}
    if written != sent:
        raise IngestError(f"Spark wrote {written} rows of the {sent} that the name servers sent")
    return IngestResult(progress.ingest_id, tuple(sorted(row["namesrv"] for row in snapshots)), written)


def _check_names(endpoints: list[Endpoint], snapshots: list[Row]) -> None:
    """Every comparison goes by the names: two of one name would be mixed up."""
    if len(snapshots) != len(endpoints):
        raise IngestError(f"Spark wrote {len(snapshots)} snapshots of {len(endpoints)} name servers")
    for name, count in Counter(row["namesrv"] for row in snapshots).items():
        if count > 1:
            same = " and ".join(sorted(row["endpoint"] for row in snapshots if row["namesrv"] == name))
            raise IngestError(
                f"{same} both call themselves {name!r}: name each name server once, and each its own name"
            )
