"""A snapshot's chunks as Arrow record batches; queues, the one table with millions of rows, column by column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.endpoints import Endpoint
from namesrv_common.topic_names import shown_labels
from route_pipeline.arrow_schemas import INTEGER, STRING, batch_of
from route_pipeline.name_server import SnapshotStream
from route_pipeline.options import EVERYTHING, Connecting, RowFilter
from route_pipeline.schemas import BROKERS, CHANGE_COLUMNS, CLUSTERS, ROW_COLUMNS, TOPIC_QUEUES

MAX_DIFFERENT_QUEUES = 16_384
"""Most decoded queues that are kept: a few MB. Above it, all are forgotten; one chunk has a few thousand at most."""

COLUMNS = tuple(column.name for column in ROW_COLUMNS[TOPIC_QUEUES])
"""Names of the columns, ``topic`` first."""


class QueueColumns(dict[bytes, int]):
    """Numbers of the different queues by their encoded form; it grows by being asked.

    Most queues of a snapshot are equal. So each different one is decoded once, and columns are looked up by number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[route_data_pb2.QueueData] = []
        self._columns: list[pa.Array] = []

    def __missing__(self, encoded: bytes) -> int:
        self._queues.append(route_data_pb2.QueueData.FromString(encoded))
        number = self[encoded] = len(self._queues) - 1
        return number

    def of(self, topics: Iterable[route_service_pb2.TopicQueues], wanted: RowFilter) -> dict[str, pa.Array]:
        """The columns of the wanted queues of topics, in the order of ``COLUMNS``. ValueError: one is no queue."""
        if len(self) > MAX_DIFFERENT_QUEUES:
            self.clear()
            self._queues.clear()
        names: list[str] = []
        numbers: list[int] = []
        number = self.__getitem__
        try:
            for topic in topics:
                if wanted.wants_topic(topic.topic):
                    # Of a message with encoded queues: see SnapshotResponse.
                    queues = cast("Sequence[bytes]", topic.queue_datas)
                    numbers += map(number, queues)
                    names += [topic.topic] * len(queues)
        except DecodeError as error:
            raise ValueError(f"a queue of topic {topic.topic!r} that cannot be decoded") from error
        rows = pa.array(numbers, INTEGER)
        taken = dict(zip(COLUMNS, (pa.array(names, STRING), *(c.take(rows) for c in self._decoded())), strict=True))
        if not wanted.clusters:
            return taken
        mask = pa.array([wanted.wants_cluster(self._queues[number].cluster_name) for number in numbers], pa.bool_())
        return {name: column.filter(mask) for name, column in taken.items()}

    def _decoded(self) -> list[pa.Array]:
        """The columns after ``topic``, of each different queue."""
        queues = self._queues
        if not self._columns or len(self._columns[0]) != len(queues):
            reported = [queue.reported_perm if queue.HasField("reported_perm") else None for queue in queues]
            self._columns = [
                pa.array([queue.cluster_name for queue in queues], STRING),
                pa.array([queue.broker_name for queue in queues], STRING),
                pa.array([queue.read_queue_nums for queue in queues], INTEGER),
                pa.array([queue.write_queue_nums for queue in queues], INTEGER),
                pa.array([queue.perm for queue in queues], INTEGER),
                pa.array([queue.topic_sys_flag for queue in queues], INTEGER),
                pa.array(reported, INTEGER),
                pa.array([static_mapping(queue) for queue in queues], STRING),
            ]
        return self._columns


def static_mapping(queue: route_data_pb2.QueueData) -> str | None:
    """A static topic's mapping as JSON, with RocketMQ's names; None for any other topic. Equal ones are equal texts."""
    if not queue.HasField("mapping"):
        return None
    mapping = queue.mapping
    values = {
        "currIdMap": dict(zip(map(str, mapping.topic_queue_ids), mapping.broker_queue_ids, strict=False)),
        "dirty": mapping.dirty,
        "epoch": mapping.epoch,
        "scope": mapping.scope,
        "totalQueues": mapping.total_queue_nums,
    }
    return json.dumps(values, separators=(",", ":"))


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
"""The name server's tables that each table of the pipeline is made of."""

_Row = dict[str, Any]


def read_table(
    endpoint: Endpoint,
    table: str,
    connecting: Connecting,
    pin_id: str | None = None,
    wanted: RowFilter = EVERYTHING,
    *,
    cold: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Reads one table of one name server; all rows are of one revision.

    Args:
        table: topic_queues, brokers or clusters.
        pin_id: The pinned snapshot that is read. None: the tables as they are now.
        cold: Whether to read a name server that is warming up.

    Yields:
        Batches of exactly ``arrow_schema(table)``, each about as large as the chunk that it was read from. They are the
        whole table only if the iteration ends without a NamesrvError.
    """
    brokers, queues = BrokerRows(), QueueColumns()
    snapshot = SnapshotStream(endpoint, connecting, pin_id, _TABLES_OF[table], cold=cold)
    origin = snapshot.origin
    common = {
        "namesrv": origin.namesrv,
        "epoch": origin.epoch,
        "revision": origin.revision,
        "taken_at": origin.taken_at_millis * 1000,
    }
    for chunk in snapshot.chunks():
        if table == TOPIC_QUEUES and chunk.topics:
            yield batch_of(table, common, queue_columns(snapshot, queues, chunk, wanted))
        elif table == CLUSTERS and chunk.clusters:
            pairs = [
                {"cluster_name": cluster.cluster_name, "broker_name": broker_name}
                for cluster in chunk.clusters
                if wanted.wants_cluster(cluster.cluster_name)
                for broker_name in cluster.broker_names
            ]
            yield batch_of(table, common, pairs)
        elif table == BROKERS:
            brokers.add(chunk)
    rows = [row for row in brokers.rows() if wanted.wants_cluster(row["cluster_name"])]
    for start in range(0, len(rows), MAX_BROKER_ROWS):
        yield batch_of(table, common, rows[start : start + MAX_BROKER_ROWS])


def queue_columns(
    snapshot: SnapshotStream, queues: QueueColumns, chunk: route_service_pb2.SnapshotChunk, wanted: RowFilter
) -> dict[str, pa.Array]:
    """The columns of topic_queues of a chunk. Raises NamesrvError if a queue cannot be decoded."""
    try:
        return queues.of(chunk.topics, wanted)
    except ValueError as error:
        raise snapshot.error(f"sent {error}") from error


class BrokerRows:
    """Joins the brokers of a snapshot from three of its tables, whose chunks may be in any order.

    A broker has a row if it is in the addresses of its group, in the table of live brokers, or both. A broker that is
    known from a snapshot file only is not live.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Row] = {}
        self._live: dict[tuple[str, str, int, str], _Row] = {}
        self._filter_servers: dict[tuple[str, str], list[str]] = {}

    def add(self, chunk: route_service_pb2.SnapshotChunk) -> None:
        for group in chunk.broker_datas:
            members = [(broker.broker_id, broker.broker_addr) for broker in group.broker_addrs]
            self._groups[group.cluster_name, group.broker_name] = plain_columns(group) | {"members": members}
        for live in chunk.live_brokers:
            row = plain_columns(live) | data_version(live) | {"last_update": live.last_update_timestamp_millis * 1000}
            self._live[live.cluster_name, live.broker_name, live.broker_id, live.broker_addr] = row
        for servers in chunk.filter_servers:
            self._filter_servers[servers.cluster_name, servers.broker_addr] = list(servers.filter_servers)

    def rows(self) -> list[_Row]:
        """The rows, ordered by cluster, group, broker id and address."""
        known = {(*names, *member) for names, group in self._groups.items() for member in group["members"]}
        return [self._row(*key) for key in sorted(known | set(self._live))]

    def _row(self, cluster_name: str, broker_name: str, broker_id: int, broker_addr: str) -> _Row:
        group = self._groups.get((cluster_name, broker_name), {})
        live = self._live.get((cluster_name, broker_name, broker_id, broker_addr))
        return {
            **group,
            **(live or {}),
            "cluster_name": cluster_name,
            "broker_name": broker_name,
            "broker_id": broker_id,
            "broker_addr": broker_addr,
            "unconfirmed": broker_id in group.get("unconfirmed_broker_ids", ()),
            "live": live is not None,
            "filter_servers": self._filter_servers.get((cluster_name, broker_addr), []),
        }


_PLAIN = {column.name for column in CHANGE_COLUMNS} - {"broker_addrs", "reason"}
_OPTIONAL = {"zone_name", "enable_acting_master", "ha_server_addr", "reported_perm"}
"""Fields that are null where they are not set."""


def plain_columns(message: Message) -> _Row:
    """The fields of a message that are columns of the same name, as they are."""
    columns: _Row = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in _PLAIN:
            value = getattr(message, field.name)
            if field.name in _OPTIONAL and not message.HasField(field.name):
                value = None
            if field.name == "labels":
                value = shown_labels(value)
            columns[field.name] = list(value) if field.is_repeated else value
    return columns


def data_version(live: route_data_pb2.BrokerLiveInfo) -> _Row:
    """The version of a broker's topic table, if it told one."""
    if not live.HasField("data_version"):
        return {}
    return {
        f"data_version_{name}": getattr(live.data_version, name)
        for name in ("timestamp_millis", "counter", "state_version")
    }
