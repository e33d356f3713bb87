"""All tables at one revision, held without copying their rows, and streamed out at leisure."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from namesrv_api.v1 import route_service_pb2

from namesrv.core import fragments
from namesrv.core.fragments import frame, tag, varint
from namesrv.core.records import BrokerData, BrokerLiveInfo, TopicQueues

CHUNK_BYTES = 128 * 1024
"""Rows are sent in chunks of about this size. Making one holds up the event loop for about 2 ms; larger ones would not
be quicker for the reader."""

_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse
_CHUNK = route_service_pb2.SnapshotChunk
_TOPIC_ROW_TAG = tag(_CHUNK.TOPICS_FIELD_NUMBER)
_TOPIC_NAME_TAG = tag(route_service_pb2.TopicQueues.TOPIC_FIELD_NUMBER)
_VARINTS = tuple(varint(number) for number in range(1 << 14))
"""Lengths are nearly always below 16 Ki: encoding one is then an index."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TopicTable:
    """The topic table as it was at one revision."""

    revision: int
    rows: Mapping[str, TopicQueues]


class TopicTableCopies:
    """Hands out copies of the topic table; those who ask at the same revision share one while anybody holds it."""

    def __init__(self) -> None:
        self._last: weakref.ref[TopicTable] | None = None

    def at(self, revision: int, table: Mapping[str, TopicQueues]) -> TopicTable:
        """The table at this revision, which must be the current one."""
        last = self._last() if self._last else None
        if last is None or last.revision != revision:
            last = TopicTable(revision, dict(table))
            self._last = weakref.ref(last)
        return last


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """All tables at one revision."""

    header_fragment: bytes
    """NamesrvHeader, framed as field 1."""
    taken_at_millis: int
    clusters: Mapping[str, frozenset[str]]
    topics: TopicTable
    groups: tuple[BrokerData, ...]
    live: tuple[tuple[BrokerLiveInfo, int], ...]
    """Live brokers with the wall-clock time each was last heard of, in milliseconds."""

    def messages(self) -> Iterator[bytes]:
        """The encoded StreamRouteSnapshotResponse messages: header, chunks, end marker."""
        start = route_service_pb2.SnapshotHeader(taken_at_millis=self.taken_at_millis)
        yield self._message(_RESPONSE.SNAPSHOT_HEADER_FIELD_NUMBER, start.SerializeToString())
        for rows in _chunks(self._rows()):
            yield self._message(_RESPONSE.CHUNK_FIELD_NUMBER, rows)
        end = route_service_pb2.SnapshotEnd(
            cluster_count=len(self.clusters),
            topic_count=len(self.topics.rows),
            queue_data_count=sum(map(len, self.topics.rows.values())),
            broker_data_count=len(self.groups),
            live_broker_count=len(self.live),
        )
        yield self._message(_RESPONSE.SNAPSHOT_END_FIELD_NUMBER, end.SerializeToString())

    def _message(self, field_number: int, payload: bytes) -> bytes:
        return b"".join((self.header_fragment, tag(field_number), varint(len(payload)), payload))

    def _rows(self) -> Iterator[bytes]:
        """Every row, framed as a field of a SnapshotChunk."""
        for cluster_name, broker_names in self.clusters.items():
            yield frame(_CHUNK.CLUSTERS_FIELD_NUMBER, fragments.cluster_data(cluster_name, broker_names))
        for group in self.groups:
            yield group.fragment + group.filter_fragment
        for live, last_update_millis in self.live:
            row = fragments.broker_live_info(live, last_update_millis)
            yield frame(_CHUNK.LIVE_BROKERS_FIELD_NUMBER, row.SerializeToString())
        for topic, queues in self.topics.rows.items():
            yield topic_row(topic, queues)


def topic_row(topic: str, queues: TopicQueues) -> bytes:
    """A TopicQueues, framed as the field topics of a SnapshotChunk."""
    name = topic.encode()
    # A topic name has at most 127 bytes, so its length takes one.
    body = b"".join((_TOPIC_NAME_TAG, _VARINTS[len(name)], name, *[queue.fragment for queue in queues]))
    length = _VARINTS[len(body)] if len(body) < len(_VARINTS) else varint(len(body))
    return b"".join((_TOPIC_ROW_TAG, length, body))


def _chunks(rows: Iterable[bytes]) -> Iterator[bytes]:
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row)
        if size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)
