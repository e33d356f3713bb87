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

MAX_QUEUES = 65_535
"""Most queues of a topic on one broker group, by the wire contract."""

_NAMES = {
    "topic_queues": ("topic", "cluster_name", "broker_name"),
    "broker_groups": ("cluster_name", "broker_name"),
    "brokers": ("cluster_name", "broker_addr"),
}
"""Columns that no row of a table may lack."""

_NUMBERS = {
    "topic_queues": {"read_queue_nums": MAX_QUEUES, "write_queue_nums": MAX_QUEUES, "perm": 7},
    "broker_groups": {},
    "brokers": {"broker_id": 2**62},
}
"""The highest numbers in rows that put something; the lowest one is 0."""

_TABLES = pa.array([*_NAMES, "clusters", "filter_servers", READS])
_OF_READS = pa.array([SNAPSHOT, CHANGES_READ, LOST, BACK, HOLE])
_NO_REASON = pa.array(["", "UNSPECIFIED", None])
_OLDEST = pa.scalar(datetime(2000, 1, 1, tzinfo=UTC), TIMESTAMP)


def problems_of(rows: pa.RecordBatch) -> pa.Array | None:
    """The column ``problem``: the first rule that each row of table ``changes`` breaks, null where none.

    None: no row breaks a rule, which is nearly always so.
    """
    found: pa.Array | None = None
    for problem, broken in _rules(rows):
        if pc.any(broken).as_py():
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
    for name, names in _NAMES.items():
        of_table = pc.equal(table, name)
        if not pc.any(of_table).as_py():
            continue
        listed = " or ".join([", ".join(names[:-1]), names[-1]])
        yield f"{listed} is missing", pc.and_(of_table, reduce(pc.or_, (_empty(rows[column]) for column in names)))
        for column, highest in _NUMBERS[name].items():
            outside = pc.or_(pc.less(rows[column], 0), pc.greater(rows[column], highest))
            broken = pc.and_(pc.and_(of_table, put), pc.fill_null(outside, fill_value=True))
            yield f"{column} is missing or out of range", broken
        if name == "broker_groups":
            empty = pc.less(pc.fill_null(pc.list_value_length(rows["broker_addrs"]), 0), 1)
            yield "a group has no addresses", pc.and_(pc.and_(of_table, put), empty)
        no_reason = pc.is_in(rows["reason"], _NO_REASON)
        yield "a removal does not say why", pc.and_(pc.and_(of_table, remove), no_reason)


def _empty(column: pa.Array) -> pa.Array:
    return pc.equal(pc.fill_null(pc.binary_length(column), 0), 0)
