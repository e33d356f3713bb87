"""What an ingest brought from each name server, and where the name servers differ. Spark does the work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.ingest import read_parquet
from route_pipeline.schemas import BROKERS, CLUSTERS, SNAPSHOTS, TOPIC_QUEUES
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.store import RouteStore

MAX_SHOWN_DIFFERENCES = 20
"""Most differences of one table that are fetched from Spark; all are counted."""

# Generation, last update and channel are each name server's own and differ always.
_COMPARED = {
    TOPIC_QUEUES: (
        ("topic", "cluster_name", "broker_name"),
        ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag"),
    ),
    BROKERS: (
        ("cluster_name", "broker_name", "broker_id", "broker_addr"),
        (
            "live",
            "unconfirmed",
            "zone_name",
            "enable_acting_master",
            "ha_server_addr",
            "data_version_timestamp_millis",
            "data_version_counter",
            "data_version_state_version",
            "filter_servers",
        ),
    ),
    CLUSTERS: (("cluster_name", "broker_name"), ()),
}


class ComparisonError(Exception):
    """Spark could not read the ingest; the text is one line."""


@dataclass(frozen=True, slots=True)
class NamesrvSummary:
    """What came from one name server."""

    namesrv: str
    """Name that it gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Revision of its tables."""
    taken_at: datetime
    """When the snapshot was taken, by its clock, UTC."""
    clusters: int
    """Number of clusters."""
    topics: int
    """Number of topics."""
    queue_rows: int
    """Number of pairs of a topic and a broker group."""
    read_queues: int
    """Queues that can be read from, of all topics."""
    write_queues: int
    """Queues that can be written to, of all topics."""
    brokers: int
    """Number of brokers."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of a table that the name servers do not agree on."""

    key: dict[str, Any]
    """Its columns."""
    values: dict[str, dict[str, Any]]
    """The other compared columns by name server; a name server that does not have the key is missing."""


@dataclass(frozen=True, slots=True)
class TableDifferences:
    """Differences of one table."""

    table: str
    """Name of the table."""
    count: int
    """Number of keys that differ."""
    shown: tuple[Difference, ...]
    """The first of them, by key."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ingest."""

    ingest_id: str
    """Its id."""
    namesrvs: tuple[NamesrvSummary, ...]
    """What came, by name of the name server."""
    differences: tuple[TableDifferences, ...]
    """Tables that differ."""


def compare_latest(spark: SparkSession, store: RouteStore) -> Comparison:
    """Compares the name servers of the latest ingest.

    Raises:
        StoreError: There is no ingest.
        ComparisonError: Spark could not read the ingest.
    """
    ingest_id = store.latest_ingest_id()
    try:
        tables = {table: read_parquet(spark, store.table_folder(table, ingest_id)) for table in (*_COMPARED, SNAPSHOTS)}
        namesrvs = _summaries(tables)
        compared = (_differences(table, tables[table], len(namesrvs)) for table in _COMPARED)
        return Comparison(ingest_id, namesrvs, tuple(found for found in compared if found.count))
    except SPARK_ERRORS as error:
        raise ComparisonError(f"ingest {ingest_id} of {store.folder} cannot be read: {one_line(error)}") from error


def _summaries(tables: dict[str, DataFrame]) -> tuple[NamesrvSummary, ...]:
    """Counts what was written, and starts from ``snapshots``: an empty name server has no other rows."""
    counted = [
        tables[CLUSTERS].groupBy("namesrv").agg(F.countDistinct("cluster_name").alias("cluster_count")),
        tables[TOPIC_QUEUES]
        .groupBy("namesrv")
        .agg(
            F.count("*").alias("queue_rows"),
            F.sum("read_queue_nums").alias("read_queues"),
            F.sum("write_queue_nums").alias("write_queues"),
        ),
        tables[BROKERS].groupBy("namesrv").agg(F.count("*").alias("broker_count")),
    ]
    snapshots = tables[SNAPSHOTS].select(
        # As a number, because Spark hands out times in the time zone of this machine.
        *("namesrv", "epoch", "revision", "topics", F.unix_millis("taken_at").alias("taken_at_millis"))
    )
    joined = reduce(lambda left, right: left.join(right, "namesrv", "left"), counted, snapshots)
    rows = joined.na.fill(0).orderBy("namesrv").collect()
    return tuple(
        NamesrvSummary(
            namesrv=row["namesrv"],
            epoch=row["epoch"],
            revision=row["revision"],
            taken_at=datetime.fromtimestamp(row["taken_at_millis"] / 1000, UTC),
            clusters=row["cluster_count"],
            topics=row["topics"],
            queue_rows=row["queue_rows"],
            read_queues=row["read_queues"],
            write_queues=row["write_queues"],
            brokers=row["broker_count"],
        )
        for row in rows
    )


def _differences(table: str, rows: DataFrame, namesrv_count: int) -> TableDifferences:
    key, values = _COMPARED[table]
    # JSON, because Spark's hash passes over nulls: (null, 'a') and ('a', null) would be the same.
    content = F.xxhash64(F.to_json(F.struct(*values))) if values else F.lit(0)
    differing = (
        rows.select(*key, content.alias("content"))
        .groupBy(*key)
        .agg(F.count("*").alias("namesrvs"), F.min("content").alias("low"), F.max("content").alias("high"))
        .where((F.col("namesrvs") != namesrv_count) | (F.col("low") != F.col("high")))
        .select(*key)
    )
    count = differing.count()
    if not count:
        return TableDifferences(table, 0, ())
    first = differing.orderBy(*key).limit(MAX_SHOWN_DIFFERENCES)
    shown: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows.join(F.broadcast(first), list(key)).orderBy(*key, "namesrv").collect():
        shown.setdefault(_pick(row, key), {})[row["namesrv"]] = dict(zip(values, _pick(row, values), strict=True))
    found = tuple(Difference(dict(zip(key, of_key, strict=True)), values) for of_key, values in shown.items())
    return TableDifferences(table, count, found)


def _pick(row: Row, columns: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)
