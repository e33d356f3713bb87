"""The conversion of snapshots and changes into Arrow record batches of the table ``changes``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.endpoints import Endpoint
from route_pipeline.arrow_schemas import batch_of
from route_pipeline.name_server import SnapshotStream, Span, read_changes
from route_pipeline.options import EVERYTHING, Connecting, RowFilter
from route_pipeline.schemas import CHANGES, READS
from route_pipeline.snapshot_rows import QueueColumns, data_version, plain_columns, queue_columns, static_mapping

MAX_BATCH_ROWS = 8192
"""Rows at which a batch of changes is forwarded: one for each revision would be slow, all at once would be large."""

PUT, REMOVE = "put", "remove"
UNKNOWN = "unknown"
"""Table, op and key of a change of a kind that this version does not know; its ``reason`` is the change in hex."""
SNAPSHOT, CHANGES_READ, LOST, BACK, HOLE, KEPT = "snapshot", "changes", "lost", "back", "hole", "kept"
"""What a reader says of its reads.

snapshot: the rows of this revision are complete. changes: the rows after one revision up to another are complete.
lost, back: a name server stopped answering, or answers again. hole: changes are missing, and a snapshot follows.
kept: nothing was read of it. ``changed_at`` is until when it is known, and ``reason`` its state: up, lost or hole.
"""

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A pinned snapshot that is to be read."""

    endpoint: Endpoint
    pin_id: str
    number: int = 0  # number of the snapshot


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """The changes of one name server that are to be read."""

    endpoint: Endpoint
    namesrv: str
    span: Span
    number: int = 0  # number of the snapshot that they follow
    read_at: int = 0  # when they were all there are, by the reader's clock, microseconds since the Unix epoch


def snapshot_rows(
    part: SnapshotPart, connecting: Connecting, wanted: RowFilter = EVERYTHING, *, cold: bool = False
) -> Iterator[pa.RecordBatch]:
    """Reads a pinned snapshot as changes that put every row. Its last row reports a snapshot.

    Args:
        cold: Whether to read a name server that is warming up.
    """
    snapshot = SnapshotStream(part.endpoint, connecting, part.pin_id, cold=cold)
    origin = snapshot.origin
    common = {
        "namesrv": origin.namesrv,
        "epoch": origin.epoch,
        "revision": origin.revision,
        "changed_at": origin.taken_at_millis * 1000,
        "op": PUT,
        "from_snapshot": True,
        "snapshot": part.number,
    }
    queues = QueueColumns()
    for chunk in snapshot.chunks():
        if chunk.topics:
            columns = queue_columns(snapshot, queues, chunk, wanted)
            key = pc.binary_join_element_wise(columns["topic"], columns["cluster_name"], columns["broker_name"], "/")
            yield batch_of(CHANGES, common | {"table_name": "topic_queues"}, columns | {"key": key})
        if rows := [row for row in _chunk_rows(chunk) if wanted.wants_cluster(row["cluster_name"])]:
            yield batch_of(CHANGES, common, rows)
    yield batch_of(
        CHANGES, common, [{"table_name": READS, "op": SNAPSHOT, "key": str(part.endpoint), "warm": origin.warm}]
    )


def change_rows(part: ChangesPart, connecting: Connecting, wanted: RowFilter = EVERYTHING) -> Iterator[pa.RecordBatch]:
    """Reads changes; ends with the row that says which ones they are."""
    span = part.span
    common = {"namesrv": part.namesrv, "epoch": span.epoch, "from_snapshot": False, "snapshot": part.number}
    rows: list[_Row] = []
    for response in read_changes(part.endpoint, connecting, span):
        at = {"revision": response.header.revision, "changed_at": response.changes.applied_at_millis * 1000}
        rows += [at | row for change in response.changes.changes for row in _rows_of(change, wanted)]
        if len(rows) >= MAX_BATCH_ROWS:
            yield batch_of(CHANGES, common, rows)
            rows = []
    rows.append(
        {
            "revision": span.up_to,
            "changed_at": part.read_at,
            "table_name": READS,
            "op": CHANGES_READ,
            "key": str(part.endpoint),
            "after_revision": span.after,
        }
    )
    yield batch_of(CHANGES, common, rows)


def _chunk_rows(chunk: route_service_pb2.SnapshotChunk) -> Iterator[_Row]:
    for kind, messages in (
        ("cluster_put", chunk.clusters),
        ("broker_put", chunk.broker_datas),
        ("live_put", chunk.live_brokers),
        ("filter_put", chunk.filter_servers),
    ):
        yield from (_row(kind, message) for message in messages)


def _rows_of(change: route_service_pb2.RouteChange, wanted: RowFilter) -> Iterable[_Row]:
    kind = change.WhichOneof("row")
    if kind == "topic_put":
        topic = change.topic_put.topic
        rows = [_row(kind, queue, topic=topic) for queue in change.topic_put.queue_datas]
    elif kind in _KINDS:
        rows = [_row(kind, getattr(change, kind))]
    else:
        # Of a newer name server. The log puts such a row aside, where it is kept and counted; nothing stops for it.
        return [{"table_name": UNKNOWN, "op": UNKNOWN, "key": UNKNOWN, "reason": change.SerializeToString().hex()}]
    return [
        row
        for row in rows
        if wanted.wants_cluster(row["cluster_name"]) and ("topic" not in row or wanted.wants_topic(row["topic"]))
    ]


_QUEUE, _GROUP = ("topic", "cluster_name", "broker_name"), ("cluster_name", "broker_name")
_BROKER = ("cluster_name", "broker_addr")
_KINDS = {
    "topic_put": ("topic_queues", PUT, _QUEUE),
    "topic_removed": ("topic_queues", REMOVE, _QUEUE),
    "broker_put": ("broker_groups", PUT, _GROUP),
    "group_removed": ("broker_groups", REMOVE, _GROUP),
    "live_put": ("brokers", PUT, _BROKER),
    "broker_removed": ("brokers", REMOVE, _BROKER),
    "cluster_put": ("clusters", PUT, ("cluster_name",)),
    "cluster_removed": ("clusters", REMOVE, ("cluster_name",)),
    "filter_put": ("filter_servers", PUT, _BROKER),
}
"""Table, op and the columns of the key, by the kind of a change. No part of a key has a slash in it."""


def _row(kind: str, message: Any, **more: str) -> _Row:
    """The row of a message: its fields that are columns, and the columns that a table makes of others."""
    table, op, keys = _KINDS[kind]
    row = plain_columns(message) | more
    row |= {"table_name": table, "op": op, "key": "/".join(row[name] for name in keys)}
    if op == REMOVE:
        row["reason"] = route_data_pb2.RemovalReason.Name(message.reason).removeprefix("REMOVAL_REASON_")
    elif kind == "topic_put":
        row["static_mapping"] = static_mapping(message)
    elif kind == "broker_put":
        row["broker_addrs"] = [plain_columns(broker) for broker in message.broker_addrs]
    elif kind == "live_put":
        row |= data_version(message)
    elif kind == "filter_put" and not message.filter_servers:
        row["op"] = REMOVE
    return row
