"""All tables at one revision, held without copying their rows, and streamed out slice by slice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from namesrv_api.v1 import route_service_pb2

from namesrv.core import encoding
from namesrv.core.encoding import frame
from namesrv.core.model import Doubted, LiveKey
from namesrv.core.pace import paced
from namesrv.core.tables import Tables

CHUNK_BYTES = 128 * 1024
"""Rows are sent in chunks of about this size. Making one blocks the event loop for about 2 ms, and larger chunks would
not be faster for the reader."""

_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse
_CHUNK = route_service_pb2.SnapshotChunk
_TOPIC_NAME = route_service_pb2.TopicQueues.TOPIC_FIELD_NUMBER


class RouteTable(Enum):
    """A table that readers may ask for. The values are those of the wire's RouteTable."""

    CLUSTERS = 1
    TOPIC_QUEUES = 2
    BROKER_GROUPS = 3
    FILTER_SERVERS = 4
    LIVE_BROKERS = 5


ALL_TABLES = frozenset(RouteTable)


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """All tables at one revision."""

    revision: int
    header_fragment: bytes
    """NamesrvHeader, framed as field 1."""
    taken_at_millis: int
    tables: Tables
    in_force: Mapping[bytes, bytes]
    """Fragments of queues whose permission in force is another than the reported one."""
    last_seen: Mapping[LiveKey, int]
    """When each live broker was last seen, by the wall clock in milliseconds."""
    doubts: Mapping[LiveKey, Doubted]
    """Of each doubted broker."""
    warm: bool | None = None
    """Whether the name server was warm. None in the snapshot file, which answers no reader."""

    def messages(self, tables: Collection[RouteTable] = ALL_TABLES) -> Iterator[bytes]:
        """The encoded StreamRouteSnapshotResponse messages: header, chunks, end marker. For a thread."""
        start = route_service_pb2.SnapshotHeader(taken_at_millis=self.taken_at_millis)
        if self.warm is not None:
            start.warm = self.warm
        yield self._message(_RESPONSE.SNAPSHOT_HEADER_FIELD_NUMBER, start.SerializeToString())
        end = route_service_pb2.SnapshotEnd()
        for chunk in chunks(self._rows(tables, end)):
            yield self._message(_RESPONSE.CHUNK_FIELD_NUMBER, chunk)
        yield self._message(_RESPONSE.SNAPSHOT_END_FIELD_NUMBER, end.SerializeToString())

    def _message(self, field_number: int, payload: bytes) -> bytes:
        return self.header_fragment + frame(field_number, payload)

    def _rows(self, tables: Collection[RouteTable], end: route_service_pb2.SnapshotEnd) -> Iterator[bytes]:
        """Rows of the tables, framed as fields of a SnapshotChunk, counted in the end marker."""
        groups, live_table = self.tables.broker_addr_table, self.tables.broker_live_table
        if RouteTable.CLUSTERS in tables:
            clusters: dict[str, list[str]] = {}
            for cluster_name, broker_name in groups:
                clusters.setdefault(cluster_name, []).append(broker_name)
            end.cluster_count = len(clusters)
            for cluster_name, broker_names in clusters.items():
                row = encoding.cluster_data(cluster_name, broker_names)
                yield frame(_CHUNK.CLUSTERS_FIELD_NUMBER, row.SerializeToString())
        if RouteTable.BROKER_GROUPS in tables:
            end.broker_data_count = len(groups)
            yield from (group.fragment for _, group in groups.rows())
        if RouteTable.FILTER_SERVERS in tables:
            yield from (group.filter_fragment for _, group in groups.rows() if group.filter_fragment)
        if RouteTable.LIVE_BROKERS in tables:
            end.live_broker_count = len(live_table)
            for key, live in paced(live_table.rows()):
                info = encoding.broker_live_info(live, self.last_seen[key], self.doubts.get(key))
                yield frame(_CHUNK.LIVE_BROKERS_FIELD_NUMBER, info.SerializeToString())
        if RouteTable.TOPIC_QUEUES in tables:
            yield from self._topic_rows(end)

    def _topic_rows(self, end: route_service_pb2.SnapshotEnd) -> Iterator[bytes]:
        """TopicQueues, framed as the field topics of a SnapshotChunk, counted in the end marker."""
        in_force = self.in_force
        topics = queue_datas = 0
        for topic, queues in paced(self.tables.topic_queue_table.rows()):
            topics += 1
            queue_datas += len(queues)
            shown = (in_force.get(queue, queue) for queue in queues) if in_force else queues
            yield frame(_CHUNK.TOPICS_FIELD_NUMBER, frame(_TOPIC_NAME, topic.encode()), *shown)
        end.topic_count, end.queue_data_count = topics, queue_datas


def chunks(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks of rows. An empty row becomes an empty chunk."""
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        if not row:
            yield b""
            continue
        chunk.append(row)
        size += len(row)
        if size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)
