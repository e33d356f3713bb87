"""The conversion of snapshots and changes into Arrow record batches of the table ``changes``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.endpoints import Endpoint
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.name_server import SnapshotStream, Span, read_changes
from route_pipeline.options import EVERYTHING, Connecting, RowFilter
from route_pipeline.schemas import CHANGES, READS
from route_pipeline.snapshot_rows import QueueColumns, live_columns, queue_columns, static_mapping

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

_SCHEMA = arrow_schema(CHANGES)
_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A pinned snapshot that is to be read."""

    endpoint: Endpoint
    pin_id: str
    number: int = 0
    """Number of the snapshot."""


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """The changes of one name server that are to be read."""

    endpoint: Endpoint
    namesrv: str
    span: Span
    number: int = 0
    """Number of the snapshot that they follow."""
    read_at: int = 0
    """When they were all there are, by the reader's clock, microseconds since the Unix epoch."""


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
            yield _queue_batch(common, queue_columns(snapshot, queues, chunk, wanted))
        if rows := [row for row in _chunk_rows(chunk) if wanted.wants_cluster(row["cluster_name"])]:
            yield _batch(common, rows)
    yield _batch(common, [{"table_name": READS, "op": SNAPSHOT, "key": str(part.endpoint), "warm": origin.warm}])


def change_rows(part: ChangesPart, connecting: Connecting, wanted: RowFilter = EVERYTHING) -> Iterator[pa.RecordBatch]:
    """Reads changes; ends with the row that says which ones they are."""
    span = part.span
    common = {"namesrv": part.namesrv, "epoch": span.epoch, "from_snapshot": False, "snapshot": part.number}
    rows: list[_Row] = []
    for response in read_changes(part.endpoint, connecting, span):
        at = {"revision": response.header.revision, "changed_at": response.changes.applied_at_millis * 1000}
        rows += [at | row for change in response.changes.changes for row in _rows_of(change, wanted)]
        if len(rows) >= MAX_BATCH_ROWS:
            yield _batch(common, rows)
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
    yield _batch(common, rows)


def reader_row(row: _Row) -> pa.RecordBatch:
    """A batch of one row in which the reader says that a name server was lost, is back, or that changes are missing.

    Args:
        row: Columns by name; ``changed_at`` is by the reader's clock, microseconds since the Unix epoch.
    """
    return _batch({"table_name": READS, "from_snapshot": False}, [row])


def _batch(common: _Row, rows: list[_Row]) -> pa.RecordBatch:
    """Rows that have some columns of their own and others in common; what neither has is null."""
    own = {name for row in rows for name in row}
    arrays = []
    for field in _SCHEMA:
        if field.name in own:
            default = common.get(field.name)
            arrays.append(pa.array([row.get(field.name, default) for row in rows], field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(common.get(field.name), field.type), len(rows)))
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _queue_batch(common: _Row, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    key = pc.binary_join_element_wise(columns["topic"], columns["cluster_name"], columns["broker_name"], "/")
    own = {**columns, "key": key}
    same = common | {"table_name": "topic_queues"}
    arrays = [
        own[field.name] if field.name in own else pa.repeat(pa.scalar(same.get(field.name), field.type), len(key))
        for field in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _chunk_rows(chunk: route_service_pb2.SnapshotChunk) -> Iterator[_Row]:
    yield from map(_cluster, chunk.clusters)
    yield from map(_group, chunk.broker_datas)
    yield from map(_live, chunk.live_brokers)
    yield from map(_filters, chunk.filter_servers)


def _rows_of(change: route_service_pb2.RouteChange, wanted: RowFilter) -> Iterable[_Row]:
    kind = change.WhichOneof("row")
    if kind == "topic_put":
        put = change.topic_put
        rows = [_queue(put.topic, queue) for queue in put.queue_datas]
    elif kind in _ROWS:
        rows = [_ROWS[kind](getattr(change, kind))]
    else:
        # Of a newer name server. The log puts such a row aside, where it is kept and counted; nothing stops for it.
        return [{"table_name": UNKNOWN, "op": UNKNOWN, "key": UNKNOWN, "reason": change.SerializeToString().hex()}]
    return [
        row
        for row in rows
        if wanted.wants_cluster(row["cluster_name"]) and ("topic" not in row or wanted.wants_topic(row["topic"]))
    ]


def _queue(topic: str, queue: route_data_pb2.QueueData) -> _Row:
    return {
        **_key("topic_queues", PUT, topic=topic, cluster_name=queue.cluster_name, broker_name=queue.broker_name),
        "read_queue_nums": queue.read_queue_nums,
        "write_queue_nums": queue.write_queue_nums,
        "perm": queue.perm,
        "topic_sys_flag": queue.topic_sys_flag,
        "reported_perm": _present(queue, "reported_perm"),
        "static_mapping": static_mapping(queue),
    }


def _queue_removal(removal: route_service_pb2.TopicQueuesRemoval) -> _Row:
    key = {"topic": removal.topic, "cluster_name": removal.cluster_name, "broker_name": removal.broker_name}
    return _key("topic_queues", REMOVE, **key) | _reason(removal)


def _group(group: route_data_pb2.BrokerData) -> _Row:
    return {
        **_key("broker_groups", PUT, cluster_name=group.cluster_name, broker_name=group.broker_name),
        "broker_addrs": [
            {"broker_id": broker.broker_id, "broker_addr": broker.broker_addr} for broker in group.broker_addrs
        ],
        "zone_name": _present(group, "zone_name"),
        "enable_acting_master": _present(group, "enable_acting_master"),
        "unconfirmed_broker_ids": list(group.unconfirmed_broker_ids),
    }


def _group_removal(removal: route_service_pb2.BrokerGroupRemoval) -> _Row:
    key = {"cluster_name": removal.cluster_name, "broker_name": removal.broker_name}
    return _key("broker_groups", REMOVE, **key) | _reason(removal)


def _live(live: route_data_pb2.BrokerLiveInfo) -> _Row:
    key = _key("brokers", PUT, cluster_name=live.cluster_name, broker_addr=live.broker_addr)
    return key | {
        "broker_name": live.broker_name,
        "broker_id": live.broker_id,
        **live_columns(live),
        "heartbeat_timeout_millis": live.heartbeat_timeout_millis,
        "unconfirmed": live.unconfirmed,
    }


def _broker_removal(removal: route_service_pb2.BrokerRemoval) -> _Row:
    names = {"broker_name": removal.broker_name, "broker_id": removal.broker_id}
    key = {"cluster_name": removal.cluster_name, "broker_addr": removal.broker_addr}
    return _key("brokers", REMOVE, **key) | names | _reason(removal)


def _cluster(cluster: route_data_pb2.ClusterData) -> _Row:
    return _key("clusters", PUT, cluster_name=cluster.cluster_name)


def _cluster_removal(removal: route_service_pb2.ClusterRemoval) -> _Row:
    return _key("clusters", REMOVE, cluster_name=removal.cluster_name) | _reason(removal)


def _filters(servers: route_data_pb2.FilterServerData) -> _Row:
    op = PUT if servers.filter_servers else REMOVE
    row = _key("filter_servers", op, cluster_name=servers.cluster_name, broker_addr=servers.broker_addr)
    return row | {"filter_servers": list(servers.filter_servers)}


_ROWS: dict[str, Callable[[Any], _Row]] = {
    "topic_removed": _queue_removal,
    "broker_put": _group,
    "group_removed": _group_removal,
    "live_put": _live,
    "broker_removed": _broker_removal,
    "cluster_put": _cluster,
    "cluster_removed": _cluster_removal,
    "filter_put": _filters,
}


def _key(table_name: str, op: str, **parts: str) -> _Row:
    """What identifies a row; no part has a slash in it."""
    return {"table_name": table_name, "op": op, "key": "/".join(parts.values()), **parts}


def _reason(removal: Any) -> _Row:
    name = route_data_pb2.RemovalReason.Name(removal.reason)
    return {"reason": name.removeprefix("REMOVAL_REASON_")}


def _present(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
