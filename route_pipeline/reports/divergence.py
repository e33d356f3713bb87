"""Divergence: where name servers disagreed, since when, for how long. They never talk, so some of it is normal.

Times of two name servers are by two clocks. Nothing here compares the two clocks: each disagreement is given twice, in
the wall times of the name servers and in the times at which the log saw it. :func:`clock_leads` gives the least
distance between the clocks.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import COMPARED

WALL_TIME, INGEST_TIME = "wall", "ingest"
"""By which clock: that of each name server, or that of the machine that wrote the log."""

_COLUMNS = {WALL_TIME: ("valid_from", "valid_to", "changed_at"), INGEST_TIME: ("seen_from", "seen_to", "ingested_at")}


def divergence(changes: DataFrame, versions: DataFrame, by: str = WALL_TIME) -> DataFrame:
    """The disagreements between name servers.

    A name server is compared from its first snapshot on. One that was lost keeps what was last known of it.

    Args:
        changes: The log.
        versions: Its history.
        by: ``wall`` or ``ingest``.

    Returns:
        ``table_name``, ``key``, ``since``, ``until`` (null: they still disagree), ``seconds`` (null likewise), and
        ``present``, a map from name server to whether it had the key, or had it otherwise, when it began.
    """
    began, ended, first_seen = _COLUMNS[by]
    firsts = _first_known(changes, first_seen)
    names = sorted(row["namesrv"] for row in firsts.collect())
    content = F.xxhash64(F.to_json(F.struct(*COMPARED)))
    compared = versions.where(F.col("namesrv").isin(*names))
    events = reduce(
        DataFrame.unionByName,
        [
            compared.select("table_name", "key", "namesrv", F.col(began).alias("at"), content.alias("content")),
            # A version that follows at once begins at the same time and comes later in the order: it counts.
            compared.where(F.col("end_reason").isNotNull() & (F.col("end_reason") != "CHANGED")).select(
                "table_name", "key", "namesrv", F.col(ended).alias("at"), F.lit(0).cast("bigint").alias("content")
            ),
            _absent_at_first(compared, firsts),
        ],
    )
    # Of two events of one name server at one time, the presence counts and not the removal.
    events = events.groupBy("table_name", "key", "namesrv", "at").agg(
        F.max_by("content", F.col("content") != 0).alias("content")
    )
    return _disagreements(_states(events, names), names)


def clock_leads(changes: DataFrame) -> DataFrame:
    """How far the clock of each name server is ahead of this machine's at least, in seconds.

    Returns:
        ``namesrv`` and ``lead_seconds``: the largest lead of the time of a change over the time at which it was
        written here. Negative: there is no sign that the clock is ahead; the number is the shortest delay.
    """
    lead = F.unix_micros("changed_at") - F.unix_micros("ingested_at")
    own = changes.where(F.col("table_name") != "reads")
    return own.groupBy("namesrv").agg((F.max(lead) / 1_000_000).alias("lead_seconds"))


def _first_known(changes: DataFrame, column: str) -> DataFrame:
    """When each name server was first known: an empty one has no row but that of its snapshot."""
    known = changes.where(F.col("op").isin("put", "remove", "snapshot"))
    return known.groupBy("namesrv").agg(F.min(column).alias("first"))


def _absent_at_first(versions: DataFrame, firsts: DataFrame) -> DataFrame:
    """The absence of each key at each name server, from its first snapshot on: lacking a key is not unknown."""
    keys = versions.select("table_name", "key").distinct()
    absent = F.lit(0).cast("bigint").alias("content")
    return keys.crossJoin(F.broadcast(firsts)).select(
        "table_name", "key", "namesrv", F.col("first").alias("at"), absent
    )


def _states(events: DataFrame, names: list[str]) -> DataFrame:
    """The state of a key at every name server after each time at which it changed at one of them."""
    by_key = Window.partitionBy("table_name", "key").orderBy("at")
    wide = events.groupBy("table_name", "key", "at").pivot("namesrv", names).agg(F.first("content"))  # type: ignore[arg-type]
    says = [F.last(F.col(f"`{name}`"), ignorenulls=True).over(by_key).alias(name) for name in names]
    return wide.select("table_name", "key", "at", *says)


def _disagreements(states: DataFrame, names: list[str]) -> DataFrame:
    by_key = Window.partitionBy("table_name", "key").orderBy("at")
    said: Column = F.filter(F.array(*(F.col(f"`{name}`") for name in names)), lambda one: one.isNotNull())
    present = F.map_from_arrays(
        F.array(*(F.lit(name) for name in names)), F.array(*(F.col(f"`{name}`") != 0 for name in names))
    )
    states = states.withColumn("differ", F.size(F.array_distinct(said)) > 1).withColumn("present", present)
    turns = states.withColumn("before", F.lag("differ", 1, False).over(by_key))
    turns = turns.where(F.col("differ") != F.col("before"))
    turns = turns.withColumn("until", F.lead("at").over(by_key))
    seconds = (F.unix_micros("until") - F.unix_micros("at")) / 1_000_000
    return turns.where("differ").select(
        "table_name", "key", F.col("at").alias("since"), "until", seconds.alias("seconds"), "present"
    )
