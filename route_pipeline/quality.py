"""Rules that every row of the change log keeps. A row that breaks one is quarantined, with the reason, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from route_pipeline.arrow_schemas import TIMESTAMP
from route_pipeline.change_rows import BACK, CHANGES_READ, HOLE, LOST, PUT, REMOVE, SNAPSHOT
from route_pipeline.schemas import READS

PROBLEM = "problem"
"""Column of quarantined rows, with the rule that the row breaks."""

MAX_QUEUES = 65_535
"""Most queues of a topic on one broker group, by the wire contract."""

_TABLES = pa.array(["topic_queues", "broker_groups", "brokers", "clusters", "filter_servers", READS])
_OF_READS = pa.array([SNAPSHOT, CHANGES_READ, LOST, BACK, HOLE])
_NO_REASON = pa.array(["", "UNSPECIFIED", None])
_OLDEST = pa.scalar(datetime(2000, 1, 1, tzinfo=UTC), TIMESTAMP)


def problems_of(rows: pa.RecordBatch) -> pa.Array | None:
    """The column ``problem``: the first rule that each row of table ``changes`` breaks, null where none.

    None: no row breaks a rule, which is nearly always so.
    """
    found: pa.Array | None = None
    for problem, broken in _rules(rows):
        if not pc.any(broken).as_py():
            continue
        named = pc.if_else(broken, pa.scalar(problem), pa.scalar(None, pa.string()))
        found = named if found is None else pc.coalesce(found, named)
    return found


def _rules(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Each rule, and the rows that break it. Rules of one table are left out where no row is of it."""
    table, op = rows["table_name"], rows["op"]
    of_reader = pc.equal(table, READS)
    put, remove = pc.equal(op, PUT), pc.equal(op, REMOVE)
    known_op = pc.if_else(of_reader, pc.is_in(op, _OF_READS), pc.or_(put, remove))
    yield "table_name is none of ours", pc.invert(pc.is_in(table, _TABLES))
    yield "op is none of ours", pc.invert(known_op)
    yield "namesrv is empty", _empty(rows["namesrv"])
    yield "epoch is empty", pc.and_not(_empty(rows["epoch"]), of_reader)
    yield "key is empty", _empty(rows["key"])
    yield "revision is negative", pc.less(rows["revision"], 0)
    yield "changed_at is before 2000", pc.less(rows["changed_at"], _OLDEST)
    if (queues := _of_table(rows, "topic_queues")) is not None:
        yield (
            "topic, cluster_name or broker_name is missing",
            pc.and_(queues, _missing(rows, "topic", "cluster_name", "broker_name")),
        )
        put_queues = pc.and_(queues, put)
        for name, highest in (("read_queue_nums", MAX_QUEUES), ("write_queue_nums", MAX_QUEUES), ("perm", 7)):
            yield f"{name} is not 0 to {highest}", pc.and_(put_queues, _not_within(rows[name], highest))
        yield _removal_without_reason(rows, queues, remove)
    if (groups := _of_table(rows, "broker_groups")) is not None:
        yield "cluster_name or broker_name is missing", pc.and_(groups, _missing(rows, "cluster_name", "broker_name"))
        addresses = pc.fill_null(pc.list_value_length(rows["broker_addrs"]), 0)
        yield "a group has no addresses", pc.and_(pc.and_(groups, put), pc.less(addresses, 1))
        yield _removal_without_reason(rows, groups, remove)
    if (brokers := _of_table(rows, "brokers")) is not None:
        yield "cluster_name or broker_addr is missing", pc.and_(brokers, _missing(rows, "cluster_name", "broker_addr"))
        negative = pc.fill_null(pc.less(rows["broker_id"], 0), fill_value=True)
        yield "broker_id is missing or negative", pc.and_(pc.and_(brokers, put), negative)
        yield _removal_without_reason(rows, brokers, remove)


def _of_table(rows: pa.RecordBatch, table: str) -> pa.Array | None:
    """Which rows are of a table; None if none is."""
    of_table = pc.equal(rows["table_name"], table)
    return of_table if pc.any(of_table).as_py() else None


def _removal_without_reason(rows: pa.RecordBatch, of_table: pa.Array, remove: pa.Array) -> tuple[str, pa.Array]:
    return "a removal does not say why", pc.and_(pc.and_(of_table, remove), pc.is_in(rows["reason"], _NO_REASON))


def _empty(column: pa.Array) -> pa.Array:
    return pc.equal(pc.binary_length(column), 0)


def _missing(rows: pa.RecordBatch, first: str, *others: str) -> pa.Array:
    broken = pc.fill_null(_empty(rows[first]), fill_value=True)
    for name in others:
        broken = pc.or_(broken, pc.fill_null(_empty(rows[name]), fill_value=True))
    return broken


def _not_within(column: pa.Array, highest: int) -> pa.Array:
    outside = pc.or_(pc.less(column, 0), pc.greater(column, highest))
    return pc.fill_null(outside, fill_value=True)
