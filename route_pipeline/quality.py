"""Rules that every row of the change log keeps. What breaks one is put aside, with the reason, and counted."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.change_rows import BACK, CHANGES_READ, HOLE, LOST, PUT, REMOVE, SNAPSHOT
from route_pipeline.schemas import READS

PROBLEM = "problem"
"""Column that says which rule a row breaks; null if none."""

MAX_QUEUES = 65_535
"""Most queues of a topic on one broker group, by the wire contract."""


def with_problem(rows: DataFrame) -> DataFrame:
    """Adds the column ``problem``: the first rule that a row breaks."""
    found = F.lit(None).cast("string")
    for problem, broken in reversed(_rules()):
        found = F.when(broken, F.lit(problem)).otherwise(found)
    return rows.withColumn(PROBLEM, found)


def _rules() -> list[tuple[str, Column]]:
    col = F.col
    of_reader = col("table_name") == READS
    put, remove = col("op") == PUT, col("op") == REMOVE
    queues, groups, brokers = (col("table_name") == name for name in ("topic_queues", "broker_groups", "brokers"))
    tables = ("topic_queues", "broker_groups", "brokers", "clusters", "filter_servers", READS)
    of_reads = (SNAPSHOT, CHANGES_READ, LOST, BACK, HOLE)
    return [
        ("table_name is none of ours", ~col("table_name").isin(*tables)),
        ("op is none of ours", ~F.when(of_reader, col("op").isin(*of_reads)).otherwise(put | remove)),
        ("namesrv is empty", col("namesrv") == ""),
        ("epoch is empty", (col("epoch") == "") & ~of_reader),
        ("key is empty", col("key") == ""),
        ("revision is negative", col("revision") < 0),
        ("changed_at is before 2000", col("changed_at") < F.lit("2000-01-01").cast("timestamp")),
        ("topic, cluster_name or broker_name is missing", queues & _missing("topic", "cluster_name", "broker_name")),
        ("cluster_name or broker_name is missing", groups & _missing("cluster_name", "broker_name")),
        ("cluster_name or broker_addr is missing", brokers & _missing("cluster_name", "broker_addr")),
        ("read_queue_nums is not 0 to 65535", queues & put & _not_within("read_queue_nums", MAX_QUEUES)),
        ("write_queue_nums is not 0 to 65535", queues & put & _not_within("write_queue_nums", MAX_QUEUES)),
        ("perm is not 0 to 7", queues & put & _not_within("perm", 7)),
        ("broker_id is missing or negative", brokers & put & ~F.coalesce(col("broker_id") >= 0, F.lit(False))),
        ("a group has no addresses", groups & put & (F.coalesce(F.size("broker_addrs"), F.lit(0)) < 1)),
        (
            "a removal does not say why",
            (queues | groups | brokers) & remove & F.coalesce(col("reason"), F.lit("")).isin("", "UNSPECIFIED"),
        ),
    ]


def _missing(*names: str) -> Column:
    broken = F.lit(False)
    for name in names:
        broken = broken | (F.coalesce(F.col(name), F.lit("")) == "")
    return broken


def _not_within(name: str, highest: int) -> Column:
    return ~F.coalesce(F.col(name).between(0, highest), F.lit(False))
