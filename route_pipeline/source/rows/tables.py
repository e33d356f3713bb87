"""The conversion of a snapshot's chunks into Arrow record batches of the pipeline's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from groundwork.endpoints import Endpoint
from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.schemas import (
    BROKERS,
    CLUSTERS,
    ORIGIN_COLUMNS,
    TOPIC_QUEUES,
)
from route_pipeline.source.name_server.connecting import Connecting
from route_pipeline.source.name_server.snapshots import WHOLE, Origin, ShardOf, SnapshotStream, open_snapshot
from route_pipeline.source.rows.encoded_queues import QueueColumns
from route_pipeline.source.rows.filter import EVERYTHING, RowFilter

MAX_BROKER_ROWS = 8192
"""Most rows in a batch of brokers, which are put together at the end of a snapshot and not chunk by chunk."""

_TABLES_OF = {
    TOPIC_QUEUES: (route_service_pb2.ROUTE_TABLE_TOPIC_QUEUES,),
    BROKERS: (
        route_service_pb2.ROUTE_TABLE_BROKER_GROUPS,
        route_service_pb2.ROUTE_TABLE_FILTER_SERVERS,
        route_service_pb2.ROUTE_TABLE_LIVE_BROKERS,
    ),
    CLUSTERS: (route_service_pb2.ROUTE_TABLE_CLUSTERS,),
}
"""The name server's tables that each of ours is made of."""

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of a table."""

    pin_id: str | None = None
    """Of which pinned snapshot; None: of the tables as they are now."""
    shard: ShardOf = WHOLE
    """Of which shard of the topics; for brokers and clusters all of it."""
    wanted: RowFilter = EVERYTHING
    """Of which topics and clusters."""


def read_table(
    endpoint: Endpoint,
    table: str,
    connecting: Connecting,
    part: Part = Part(),
) -> Iterator[pa.RecordBatch]:
    """Reads one table of one name server, or a shard of it; all rows are of one revision.

    Args:
        endpoint: Where the name server listens.
        table: topic_queues, brokers or clusters.
        connecting: How to connect.
        part: Which rows of it.

    Yields:
        Batches of exactly ``arrow_schema(table)``, each about as large as the chunk it came from. They are the
        whole table only if the iteration ends without an error.

    Raises:
        NamesrvError: The snapshot could not be read whole.
    """
    brokers, queues = BrokerRows(), QueueColumns()
    with open_snapshot(endpoint, connecting, part.pin_id, part.shard, _TABLES_OF[table]) as snapshot:
        batches = _Batches(table, snapshot.origin)
        for chunk in snapshot.chunks():
            if table == TOPIC_QUEUES and chunk.topics:
                yield batches.of_arrays(list(queue_columns(snapshot, queues, chunk, part.wanted).values()))
            elif table == CLUSTERS and chunk.clusters:
                yield batches.of_rows(
                    row
                    for row in _cluster_rows(chunk)
                    if part.wanted.wants_group(row["cluster_name"], row["broker_name"])
                )
            elif table == BROKERS:
                brokers.add(chunk)
    rows = [row for row in brokers.rows() if part.wanted.wants_group(row["cluster_name"], row["broker_name"])]
    for start in range(0, len(rows), MAX_BROKER_ROWS):
        yield batches.of_rows(rows[start : start + MAX_BROKER_ROWS])


def queue_columns(
    snapshot: SnapshotStream, queues: QueueColumns, chunk: route_service_pb2.SnapshotChunk, wanted: RowFilter
) -> dict[str, pa.Array]:
    """The columns of topic_queues of a chunk.

    Raises:
        NamesrvError: A queue cannot be decoded.
    """
    try:
        return queues.of(chunk.topics, wanted)
    except ValueError as error:
        raise snapshot.error(f"sent {error}") from error


class BrokerRows:
    """Joins what a snapshot tells of brokers in three of its tables, which may come in any chunks.

    A broker has a row if it is in the addresses of its group, in the table of live brokers, or both: one that is
    known from a snapshot file only is not live.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], route_data_pb2.BrokerData] = {}
        self._live: dict[tuple[str, str, int, str], route_data_pb2.BrokerLiveInfo] = {}
        self._filter_servers: dict[tuple[str, str], list[str]] = {}
        self._keys: set[tuple[str, str, int, str]] = set()

    def add(self, chunk: route_service_pb2.SnapshotChunk) -> None:
        """Takes up a chunk."""
        # Copies: a reference to a part of a chunk would keep all of the chunk in memory.
        for group in chunk.broker_datas:
            copied_group = self._groups[group.cluster_name, group.broker_name] = type(group)()
            copied_group.CopyFrom(group)
            for broker in group.broker_addrs:
                self._keys.add((group.cluster_name, group.broker_name, broker.broker_id, broker.broker_addr))
        for live in chunk.live_brokers:
            key = (live.cluster_name, live.broker_name, live.broker_id, live.broker_addr)
            copied_live = self._live[key] = type(live)()
            copied_live.CopyFrom(live)
            self._keys.add(key)
        for servers in chunk.filter_servers:
            self._filter_servers[servers.cluster_name, servers.broker_addr] = list(servers.filter_servers)

    def rows(self) -> list[_Row]:
        """The rows, ordered by cluster, group, broker id and address."""
        return [self._row(*key) for key in sorted(self._keys)]

    def _row(self, cluster_name: str, broker_name: str, broker_id: int, broker_addr: str) -> _Row:
        group = self._groups.get((cluster_name, broker_name), route_data_pb2.BrokerData())
        live = self._live.get((cluster_name, broker_name, broker_id, broker_addr))
        return {
            "cluster_name": cluster_name,
            "broker_name": broker_name,
            "broker_id": broker_id,
            "broker_addr": broker_addr,
            "zone_name": group.zone_name if group.HasField("zone_name") else None,
            "enable_acting_master": group.enable_acting_master if group.HasField("enable_acting_master") else None,
            "unconfirmed": broker_id in group.unconfirmed_broker_ids,
            "live": live is not None,
            "filter_servers": self._filter_servers.get((cluster_name, broker_addr), []),
            **(_live_broker_columns(live) if live is not None else {}),
        }


class _Batches:
    """Makes batches of one table's schema, all of one origin."""

    def __init__(self, table: str, origin: Origin) -> None:
        self._schema = arrow_schema(table)
        self._fields = list(self._schema)[len(ORIGIN_COLUMNS) :]
        values = (origin.namesrv, origin.epoch, origin.revision, origin.taken_at_millis * 1000)
        self._origin = [pa.scalar(value, field.type) for value, field in zip(values, self._schema, strict=False)]

    def of_rows(self, rows: Iterable[_Row]) -> pa.RecordBatch:
        listed = list(rows)
        return self.of_arrays([pa.array([row.get(field.name) for row in listed], field.type) for field in self._fields])

    def of_arrays(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        origin = [pa.repeat(value, len(arrays[0])) for value in self._origin]
        return pa.RecordBatch.from_arrays(origin + arrays, schema=self._schema)


def _cluster_rows(chunk: route_service_pb2.SnapshotChunk) -> list[_Row]:
    return [
        {"cluster_name": cluster.cluster_name, "broker_name": broker_name}
        for cluster in chunk.clusters
        for broker_name in cluster.broker_names
    ]


def _live_broker_columns(live: route_data_pb2.BrokerLiveInfo) -> _Row:
    return live_columns(live) | {"last_update": live.last_update_timestamp_millis * 1000}


def live_columns(live: route_data_pb2.BrokerLiveInfo) -> dict[str, Any]:
    """What every table with live brokers has of one."""
    columns: _Row = {
        "ha_server_addr": live.ha_server_addr if live.HasField("ha_server_addr") else None,
        "generation": live.generation,
        "has_channel": live.has_channel,
    }
    if live.HasField("data_version"):
        version = live.data_version
        columns["data_version_timestamp_millis"] = version.timestamp_millis
        columns["data_version_counter"] = version.counter
        columns["data_version_state_version"] = version.state_version
    return columns
