"""What a person asks first: what changed in the last day, where name servers disagree now, who came and went."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import CHANGED, KEY
from route_pipeline.reports.questions import utc

SHOWN = 15
"""Rows of a list."""
FLAPS = 2
"""A broker that went away so often within a day at one name server flapped."""

CAME, WENT = "came", "went"
_DAY_MICROS = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a row, at the name servers where it did."""

    at: datetime
    """The last time, by the clock of the name server, UTC."""
    table_name: str
    key: str
    kind: str
    """came, changed or went."""
    reason: str
    """Why it went; empty otherwise."""
    namesrvs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flap:
    """A broker that went away again and again."""

    key: str
    times: int
    """How often, at the name server that saw it most often."""
    last: datetime
    """When last, UTC."""
    reasons: tuple[str, ...]
    namesrvs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row that name servers do not agree on now."""

    since: datetime
    """By the time of the ingest, UTC."""
    table_name: str
    key: str
    have: tuple[str, ...]
    """Name servers that had it when it began."""
    lack: tuple[str, ...]
    """Name servers that did not. None: they have it, but otherwise."""


@dataclass(frozen=True, slots=True)
class LastDay:
    """The answers."""

    until: datetime
    """When the log was written last, UTC; the day ends there."""
    counts: list[tuple[str, int, int, int]]
    """Table, and how many of its rows came, changed and went; at several name servers counts once."""
    latest: list[Change]
    """The latest changes."""
    flaps: list[Flap]
    """Most frequent first."""
    disagreements: list[Disagreement]
    """Oldest first."""


def last_day(changes: DataFrame, versions: DataFrame, disagreements: DataFrame) -> LastDay:
    """Computes them.

    Args:
        changes: The log, with at least one ingest.
        versions: Its history.
        disagreements: Those between name servers, by the time of the ingest.
    """
    until: int = changes.agg(F.max(F.unix_micros("ingested_at")).alias("until")).collect()[0]["until"]
    events = _events(changes, versions, until - _DAY_MICROS).cache()
    try:
        return LastDay(utc(until), _counts(events), _latest(events), _flaps(events), _open(disagreements))
    finally:
        events.unpersist()


def _events(changes: DataFrame, versions: DataFrame, since: int) -> DataFrame:
    """Comings, changes and goings after a time of the ingest's. What a first read finds did not come then."""
    firsts = changes.groupBy("namesrv").agg(F.min(F.unix_micros("ingested_at")).alias("first"))
    of_row = Window.partitionBy(*KEY).orderBy("valid_from_epoch", "valid_from_revision")
    follows = F.coalesce(F.lag("end_reason").over(of_row) == CHANGED, F.lit(False))
    began = versions.withColumn("follows", follows).join(F.broadcast(firsts), "namesrv")
    seen_from, seen_to = F.unix_micros("seen_from"), F.unix_micros("seen_to")
    came = began.where(~F.col("follows") & (seen_from > F.greatest(F.lit(since), "first")))
    ended = versions.where(F.col("end_reason").isNotNull() & (seen_to > since))
    of_change = F.col("end_reason") == CHANGED
    parts = [
        _part(came, "valid_from", F.lit(CAME), F.lit("")),
        _part(ended.where(of_change), "valid_to", F.lit("changed"), F.lit("")),
        _part(ended.where(~of_change), "valid_to", F.lit(WENT), F.col("end_reason")),
    ]
    return reduce(DataFrame.unionByName, parts)


def _part(rows: DataFrame, at: str, kind: Column, reason: Column) -> DataFrame:
    return rows.select(*KEY, F.unix_micros(at).alias("at"), kind.alias("kind"), reason.alias("why"))


def _counts(events: DataFrame) -> list[tuple[str, int, int, int]]:
    kinds = events.groupBy("table_name").pivot("kind", [CAME, "changed", WENT]).agg(F.countDistinct("key"))
    rows = kinds.orderBy("table_name").collect()
    return [(row["table_name"], row[CAME] or 0, row["changed"] or 0, row[WENT] or 0) for row in rows]


def _latest(events: DataFrame) -> list[Change]:
    of_all = events.groupBy("table_name", "key", "kind", "why").agg(
        F.max("at").alias("at"), F.sort_array(F.collect_set("namesrv")).alias("namesrvs")
    )
    rows = of_all.orderBy(F.desc("at"), "table_name", "key").limit(SHOWN).collect()
    return [
        Change(utc(row["at"]), row["table_name"], row["key"], row["kind"], row["why"], tuple(row["namesrvs"]))
        for row in rows
    ]


def _flaps(events: DataFrame) -> list[Flap]:
    went = events.where((F.col("table_name") == "brokers") & (F.col("kind") == WENT))
    by_namesrv = went.groupBy("namesrv", "key").agg(
        F.count("*").alias("times"), F.max("at").alias("at"), F.collect_set("why").alias("why")
    )
    by_broker = by_namesrv.where(F.col("times") >= FLAPS).groupBy("key")
    rows = by_broker.agg(
        F.max("times").alias("times"),
        F.max("at").alias("at"),
        F.sort_array(F.array_distinct(F.flatten(F.collect_list("why")))).alias("why"),
        F.sort_array(F.collect_set("namesrv")).alias("namesrvs"),
    )
    return [
        Flap(row["key"], row["times"], utc(row["at"]), tuple(row["why"]), tuple(row["namesrvs"]))
        for row in rows.orderBy(F.desc("times"), "key").limit(SHOWN).collect()
    ]


def _open(disagreements: DataFrame) -> list[Disagreement]:
    lasting = disagreements.where("until IS NULL").withColumn("began", F.unix_micros("since"))
    found = []
    for row in lasting.orderBy("began", "table_name", "key").limit(SHOWN).collect():
        # Null: not read by then.
        have, lack = (
            tuple(sorted(name for name, has in row["present"].items() if has is wanted)) for wanted in (True, False)
        )
        found.append(Disagreement(utc(row["began"]), row["table_name"], row["key"], have, lack))
    return found
