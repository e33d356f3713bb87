"""Rules that every row of the change log keeps. A row that breaks one is quarantined, with the reason, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce

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
    for name, names, wrong in (
        ("topic_queues", ("topic", "cluster_name", "broker_name"), _wrong_queues),
        ("broker_groups", ("cluster_name", "broker_name"), _wrong_groups),
        ("brokers", ("cluster_name", "broker_addr"), _wrong_brokers),
    ):
        of_table = pc.equal(table, name)
        if not pc.any(of_table).as_py():
            continue
        listed = " or ".join([", ".join(names[:-1]), names[-1]])
        missing = [pc.fill_null(_empty(rows[column]), fill_value=True) for column in names]
        yield f"{listed} is missing", pc.and_(of_table, reduce(pc.or_, missing))
        for problem, broken in wrong(rows):
            yield problem, pc.and_(pc.and_(of_table, put), broken)
        no_reason = pc.is_in(rows["reason"], _NO_REASON)
        yield "a removal does not say why", pc.and_(pc.and_(of_table, remove), no_reason)


Rules = Iterator[tuple[str, pa.Array]]


def _wrong_queues(rows: pa.RecordBatch) -> Rules:
    for name, highest in (("read_queue_nums", MAX_QUEUES), ("write_queue_nums", MAX_QUEUES), ("perm", 7)):
        outside = pc.or_(pc.less(rows[name], 0), pc.greater(rows[name], highest))
        yield f"{name} is not 0 to {highest}", pc.fill_null(outside, fill_value=True)


def _wrong_groups(rows: pa.RecordBatch) -> Rules:
    yield "a group has no addresses", pc.less(pc.fill_null(pc.list_value_length(rows["broker_addrs"]), 0), 1)


def _wrong_brokers(rows: pa.RecordBatch) -> Rules:
    yield "broker_id is missing or negative", pc.fill_null(pc.less(rows["broker_id"], 0), fill_value=True)


def _empty(column: pa.Array) -> pa.Array:
    return pc.equal(pc.binary_length(column), 0)
