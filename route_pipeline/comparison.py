"""A comparison of name servers as they are now. Spark does the work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import COMPARED, current, history
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

MAX_SHOWN_DIFFERENCES = 20
"""Most differences of one table that are fetched from Spark; all are counted."""

# Generation and channel are each name server's own and differ always.
COMPARED_COLUMNS = {
    "topic_queues": (
        ("topic", "cluster_name", "broker_name"),
        ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag", "reported_perm", "static_mapping"),
    ),
    "broker_groups": (
        ("cluster_name", "broker_name"),
        ("broker_addrs", "zone_name", "enable_acting_master", "unconfirmed_broker_ids"),
    ),
    "brokers": (
        ("cluster_name", "broker_addr"),
        (
            "broker_name",
            "broker_id",
            "ha_server_addr",
            "data_version_timestamp_millis",
            "data_version_counter",
            "data_version_state_version",
            "heartbeat_timeout_millis",
            "unconfirmed",
        ),
    ),
    "clusters": (("cluster_name",), ()),
    "filter_servers": (("cluster_name", "broker_addr"), ("filter_servers",)),
}
"""Key and compared columns of each table."""


class ComparisonError(Exception):
    """Spark could not read the log; the text is one line."""


@dataclass(frozen=True, slots=True)
class NamesrvSummary:
    """What is known of one name server."""

    namesrv: str
    """Name that it gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Revision of its tables."""
    ingested_at: datetime
    """When that was written to the log, UTC."""
    lost: bool
    """Whether it did not answer when it was last asked: the numbers are from before."""
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
    """Number of live brokers."""


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
    """The name servers as they are known now."""

    run_id: str
    """The run of the last ingest."""
    namesrvs: tuple[NamesrvSummary, ...]
    """What is known, by name of the name server."""
    differences: tuple[TableDifferences, ...]
    """Tables that differ."""


def compare_latest(spark: SparkSession, log: RouteLog) -> Comparison:
    """Compares the name servers as the log knows them now.

    Raises:
        StoreError: There is no ingest.
        ComparisonError: Spark could not read the log.
    """
    found = log.state()
    known = {name: summary for name, summary in found.known.items() if summary.epoch}
    try:
        changes = read_changes(spark, log)
        rows = current(history(changes)).where(F.col("namesrv").isin(*known)).cache()
        try:
            namesrvs = _namesrvs(rows, known, found.lost)
            differences = _differences(rows, len(namesrvs))
        finally:
            rows.unpersist()
    except SPARK_ERRORS as error:
        raise ComparisonError(f"{log.url} cannot be read: {one_line(error)}") from error
    return Comparison(found.run, namesrvs, differences)


def _namesrvs(rows: DataFrame, known: dict[str, Summary], lost: set[str]) -> tuple[NamesrvSummary, ...]:
    """Counts the rows, and starts from what was read: an empty name server has no rows."""
    of = {table: F.col("table_name") == table for table in COMPARED_COLUMNS}
    queues = of["topic_queues"]
    counted = rows.groupBy("namesrv").agg(
        F.countDistinct(F.when(of["clusters"], F.col("key"))).alias("clusters"),
        F.countDistinct(F.when(queues, F.col("topic"))).alias("topics"),
        F.count(F.when(queues, 1)).alias("queue_rows"),
        F.sum(F.when(queues, F.col("read_queue_nums")).otherwise(0)).alias("read_queues"),
        F.sum(F.when(queues, F.col("write_queue_nums")).otherwise(0)).alias("write_queues"),
        F.count(F.when(of["brokers"], 1)).alias("brokers"),
    )
    counts = {row["namesrv"]: row.asDict() for row in counted.collect()}
    nothing = dict.fromkeys(counted.columns, 0)
    found = []
    for name, summary in sorted(known.items()):
        numbers = {column: value for column, value in counts.get(name, nothing).items() if column != "namesrv"}
        found.append(
            NamesrvSummary(
                namesrv=name,
                epoch=summary.epoch,
                revision=summary.revision,
                ingested_at=summary.ingested_at,
                lost=name in lost,
                **numbers,
            )
        )
    return tuple(found)


def _differences(rows: DataFrame, namesrv_count: int) -> tuple[TableDifferences, ...]:
    """Tables that differ, in two jobs: one finds and counts the keys, the other fetches the rows of those shown."""
    # JSON, because Spark's hash ignores nulls: (null, 'a') and ('a', null) would be the same.
    content = F.xxhash64(F.to_json(F.struct(*COMPARED)))
    differing = (
        rows.groupBy("table_name", "key")
        .agg(F.count("*").alias("namesrvs"), F.min(content).alias("low"), F.max(content).alias("high"))
        .where((F.col("namesrvs") != namesrv_count) | (F.col("low") != F.col("high")))
    )
    of_table = Window.partitionBy("table_name")
    numbered = differing.select(
        *("table_name", "key"),
        F.count("*").over(of_table).alias("count"),
        F.row_number().over(of_table.orderBy("key")).alias("number"),
    )
    first = numbered.where(F.col("number") <= MAX_SHOWN_DIFFERENCES).collect()
    if not first:
        return ()
    counts = {row["table_name"]: row["count"] for row in first}
    keys = [F.struct(F.lit(row["table_name"]), F.lit(row["key"])) for row in first]
    shown: dict[str, dict[str, list[Row]]] = {}
    for row in rows.where(F.struct("table_name", "key").isin(*keys)).orderBy("key", "namesrv").collect():
        shown.setdefault(row["table_name"], {}).setdefault(row["key"], []).append(row)
    return tuple(
        TableDifferences(table, counts[table], tuple(_difference(table, found) for found in shown[table].values()))
        for table in COMPARED_COLUMNS
        if table in counts
    )


def _difference(table: str, rows: list[Row]) -> Difference:
    key, values = COMPARED_COLUMNS[table]
    of_namesrv = {row["namesrv"]: dict(zip(values, _pick(row, values), strict=True)) for row in rows}
    return Difference(dict(zip(key, _pick(rows[0], key), strict=True)), of_namesrv)


def _pick(row: Row, columns: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)
