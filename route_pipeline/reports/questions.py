"""Answers to questions about the history, as rows for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import as_of

MAX_EVENTS = 1_000
"""Most events that are fetched for one answer, the latest ones."""


@dataclass(frozen=True, slots=True)
class RouteAt:
    """Queues of a topic on one broker group, as one name server had them."""

    namesrv: str
    cluster_name: str
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    broker_addrs: dict[int, str]
    """Addresses of the group by broker id; empty if the group was not known."""
    valid_from: datetime
    """Since when, by the clock of the name server, UTC."""


@dataclass(frozen=True, slots=True)
class Event:
    """A version of a row of a topic, of a group that has queues of it or of a broker there, and how it ended."""

    namesrv: str
    table_name: str
    key: str
    what: str
    """The row, short."""
    valid_from: datetime
    valid_to: datetime | None
    """None: it is still there."""
    end_reason: str | None


def route_at(versions: DataFrame, topic: str, at: datetime) -> list[RouteAt]:
    """A topic's route at a time, as each name server had it by its own clock.

    Args:
        versions: The history.
        topic: Name of the topic.
        at: The time, with its time zone.
    """
    there = as_of(versions, at)
    queues = there.where((F.col("table_name") == "topic_queues") & (F.col("topic") == topic))
    groups = there.where(F.col("table_name") == "broker_groups").select(
        "namesrv", "cluster_name", "broker_name", F.col("broker_addrs").alias("addrs")
    )
    joined = queues.join(groups, ["namesrv", "cluster_name", "broker_name"], "left")
    rows = joined.withColumn("since", F.unix_micros("valid_from")).orderBy("namesrv", "cluster_name", "broker_name")
    return [
        RouteAt(
            namesrv=row["namesrv"],
            cluster_name=row["cluster_name"],
            broker_name=row["broker_name"],
            read_queue_nums=row["read_queue_nums"],
            write_queue_nums=row["write_queue_nums"],
            perm=row["perm"],
            broker_addrs={broker["broker_id"]: broker["broker_addr"] for broker in row["addrs"] or ()},
            valid_from=utc(row["since"]),
        )
        for row in rows.collect()
    ]


def events_of(versions: DataFrame, topic: str) -> list[Event]:
    """What happened to a topic, and to the groups that ever had queues of it and their brokers, oldest first.

    Args:
        versions: The history.
        topic: Name of the topic.
    """
    queues = versions.where((F.col("table_name") == "topic_queues") & (F.col("topic") == topic))
    holders = queues.select("namesrv", "cluster_name", "broker_name").distinct()
    groups = versions.where(F.col("table_name").isin("broker_groups", "brokers"))
    groups = groups.join(holders, ["namesrv", "cluster_name", "broker_name"], "left_semi")
    found = queues.unionByName(groups)
    found = found.withColumn("began", F.unix_micros("valid_from")).withColumn("ended", F.unix_micros("valid_to"))
    latest = found.orderBy(F.desc("began"), F.desc("valid_from_revision"), "namesrv", "key").limit(MAX_EVENTS).collect()
    return [_event(row) for row in reversed(latest)]


def utc(micros: int) -> datetime:
    """A time from Spark in UTC; Spark itself would give it in the time zone of this machine."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def _event(row: Row) -> Event:
    if row["table_name"] == "topic_queues":
        what = f"read {row['read_queue_nums']}, write {row['write_queue_nums']}, perm {row['perm']}"
    elif row["table_name"] == "brokers":
        role = "master" if row["broker_id"] == 0 else "slave"
        what = f"{role} {row['broker_id']}, topics of version {row['data_version_counter']}"
    else:
        what = ", ".join(f"{broker['broker_id']}={broker['broker_addr']}" for broker in row["broker_addrs"])
    return Event(
        namesrv=row["namesrv"],
        table_name=row["table_name"],
        key=row["key"],
        what=what,
        valid_from=utc(row["began"]),
        valid_to=None if row["ended"] is None else utc(row["ended"]),
        end_reason=row["end_reason"],
    )
