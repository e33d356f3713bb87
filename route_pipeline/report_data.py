"""The numbers of the report over time, computed by Spark and small enough for a page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.queries import INGEST_TIME, WALL_TIME, LastDay, divergence, last_day, utc

POINTS = 400
"""Points of a line: more than a plot has pixels for would be lost."""

SHOWN = 15
"""Rows of a ranking."""

MAX_CONVERGENCE_TIMES = 20_000
"""Most times to convergence that are fetched for the histogram."""

TOPICS, QUEUES, BROKERS = "topics", "write queues", "brokers"

Series = dict[str, list[tuple[datetime, int]]]
"""Points of a line by name server."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """What the report shows."""

    last_day: LastDay
    """What a person asks first."""
    over_time: dict[str, Series]
    """Topics, write queues and brokers over time, by the clock of each name server."""
    churn: list[tuple[str, int]]
    """Broker groups whose rows changed most often, with the number of versions that ended."""
    removals: list[tuple[str, str, int]]
    """Table, reason and number of ends that were no change, most frequent first."""
    convergence: dict[str, list[float]]
    """How long disagreements lasted, s, by clock: ``wall`` and ``ingest``."""


def collect_report(changes: DataFrame, versions: DataFrame) -> ReportData:
    """Computes the numbers of the report. The history is read many times, so it should be cached."""
    queues = versions.where(F.col("table_name") == "topic_queues")
    disagreements = {by: divergence(changes, versions, by) for by in (WALL_TIME, INGEST_TIME)}
    ended = versions.where(F.col("end_reason").isNotNull())
    churn = ended.where(F.col("broker_name").isNotNull()).groupBy("broker_name").count()
    removals = ended.where(F.col("end_reason") != "CHANGED").groupBy("table_name", "end_reason").count()
    return ReportData(
        last_day=last_day(changes, versions),
        over_time={
            TOPICS: _over_time(_topic_steps(queues)),
            QUEUES: _over_time(_steps(queues, F.col("write_queue_nums"))),
            BROKERS: _over_time(_steps(versions.where(F.col("table_name") == "brokers"), F.lit(1))),
        },
        churn=[(row["broker_name"], row["count"]) for row in _top(churn, "count", "broker_name")],
        removals=[
            (row["table_name"], row["end_reason"], row["count"]) for row in _top(removals, "count", "table_name")
        ],
        convergence={
            by: [row["seconds"] for row in rows.where("seconds IS NOT NULL").limit(MAX_CONVERGENCE_TIMES).collect()]
            for by, rows in disagreements.items()
        },
    )


def _steps(versions: DataFrame, height: Column) -> DataFrame:
    """Up at the beginning of each version, down at its end."""
    up = versions.select("namesrv", F.unix_micros("valid_from").alias("at"), height.cast("bigint").alias("step"))
    over = versions.where(F.col("end_reason").isNotNull())
    down = over.select("namesrv", F.unix_micros("valid_to").alias("at"), (-height).cast("bigint").alias("step"))
    return up.unionByName(down)


def _topic_steps(queues: DataFrame) -> DataFrame:
    """Up when a topic comes to its first broker group, down when it has left its last."""
    by_topic = queues.select("*", F.lit(1).alias("one"))
    moves = reduce(
        DataFrame.unionByName,
        [
            by_topic.select("namesrv", "topic", F.unix_micros("valid_from").alias("at"), F.col("one").alias("step")),
            by_topic.where(F.col("end_reason").isNotNull()).select(
                "namesrv", "topic", F.unix_micros("valid_to").alias("at"), (-F.col("one")).alias("step")
            ),
        ],
    )
    moves = moves.groupBy("namesrv", "topic", "at").agg(F.sum("step").alias("step"))
    so_far = Window.partitionBy("namesrv", "topic").orderBy("at")
    there = F.when(F.sum("step").over(so_far) > 0, 1).otherwise(0)
    moves = moves.withColumn("there", there)
    before = F.lag("there", 1, 0).over(so_far)
    return moves.withColumn("step", (F.col("there") - before).cast("bigint")).select("namesrv", "at", "step")


def _over_time(steps: DataFrame) -> Series:
    """Sums steps up to points that are evenly spread in time."""
    ends = steps.agg(F.min("at").alias("first"), F.max("at").alias("last")).collect()[0]
    if ends["first"] is None:
        return {}
    width = max(1, (ends["last"] - ends["first"]) // POINTS + 1)
    bucket = ((F.col("at") - ends["first"]) / width).cast("bigint")
    rows = steps.groupBy("namesrv", bucket.alias("bucket")).agg(F.sum("step").alias("step"), F.max("at").alias("at"))
    series: Series = {}
    for row in rows.orderBy("namesrv", "bucket").collect():
        line = series.setdefault(row["namesrv"], [])
        line.append((utc(row["at"]), (line[-1][1] if line else 0) + row["step"]))
    return series


def _top(rows: DataFrame, number: str, name: str) -> list[Row]:
    return rows.orderBy(F.desc(number), name).limit(SHOWN).collect()
