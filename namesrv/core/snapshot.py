"""All tables at one revision: held without copying their rows, streamed out chunk by chunk, and read again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError
from namesrv_api.v1 import route_data_pb2, route_service_pb2
from namesrv_api.v1.route_service_pb2 import RouteTable

from namesrv.core import encoding
from namesrv.core.encoding import frame
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    Doubted,
    LiveKey,
    Member,
    ReportedQueues,
    ReportedTopic,
    StaticMapping,
)
from namesrv.core.pace import paced
from namesrv.core.tables import Tables
from namesrv.core.transaction import Transaction

CHUNK_BYTES = 128 * 1024
"""Rows are sent in chunks of about this size. Making one blocks the event loop for about 2 ms, and larger chunks would
not be faster for the reader."""

_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse
_CHUNK = route_service_pb2.SnapshotChunk
_TOPIC_NAME = route_service_pb2.TopicQueues.TOPIC_FIELD_NUMBER


ALL_TABLES = cast("frozenset[RouteTable]", frozenset(RouteTable.values()) - {route_service_pb2.ROUTE_TABLE_UNSPECIFIED})


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
        if route_service_pb2.ROUTE_TABLE_CLUSTERS in tables:
            clusters: dict[str, list[str]] = {}
            for cluster_name, broker_name in groups:
                clusters.setdefault(cluster_name, []).append(broker_name)
            end.cluster_count = len(clusters)
            for cluster_name, broker_names in clusters.items():
                row = encoding.cluster_data(cluster_name, broker_names)
                yield frame(_CHUNK.CLUSTERS_FIELD_NUMBER, row.SerializeToString())
        if route_service_pb2.ROUTE_TABLE_BROKER_GROUPS in tables:
            end.broker_data_count = len(groups)
            yield from (group.fragment for _, group in groups.rows())
        if route_service_pb2.ROUTE_TABLE_FILTER_SERVERS in tables:
            yield from (group.filter_fragment for _, group in groups.rows() if group.filter_fragment)
        if route_service_pb2.ROUTE_TABLE_LIVE_BROKERS in tables:
            end.live_broker_count = len(live_table)
            for key, live in paced(live_table.rows()):
                info = encoding.broker_live_info(live, self.last_seen[key], self.doubts.get(key))
                yield frame(_CHUNK.LIVE_BROKERS_FIELD_NUMBER, info.SerializeToString())
        if route_service_pb2.ROUTE_TABLE_TOPIC_QUEUES in tables:
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


# The reader of a snapshot file's messages, into empty tables.

_NO_BROKER = BrokerKey("", "")
"""Sorts before every group."""


class UnusableSnapshot(Exception):
    """The messages are not what a name server writes: they do not fit together. The text says where."""


class LoadedSnapshot(NamedTuple):
    """The facts of a snapshot that are in no row of the tables."""

    taken_at_millis: int
    """When it was taken, by the wall clock, milliseconds since the Unix epoch."""
    topic_count: int
    last_update_millis: Mapping[LiveKey, int]
    """When each live broker was last seen, by the wall clock."""


def read_snapshot(messages: Iterable[bytes], transaction: Transaction) -> LoadedSnapshot:
    """Puts what ``RouteSnapshot.messages`` made into a transaction of empty tables, whose intents apply to it.

    All or nothing: a file has a checksum, so rows that do not fit together were written so, and then the other rows
    cannot be trusted either. The values of rows are not checked: registration has checked them.

    Raises:
        UnusableSnapshot: The messages do not make a whole snapshot whose rows fit together.
    """
    reader, taken_at_millis = _SnapshotReader(transaction), None
    end: route_service_pb2.SnapshotEnd | None = None
    for message in messages:
        try:
            parsed = _RESPONSE.FromString(message)
        except DecodeError as error:
            raise UnusableSnapshot("a message cannot be parsed") from error
        _check(end is None, "something follows the end marker")
        if taken_at_millis is None:
            _check(parsed.HasField("snapshot_header"), "it does not start with a header")
            taken_at_millis = parsed.snapshot_header.taken_at_millis
        elif parsed.HasField("snapshot_end"):
            end = parsed.snapshot_end
        else:
            _check(parsed.HasField("chunk"), "a message is neither a chunk nor the end marker")
            reader.take(parsed.chunk)
    if end is None or taken_at_millis is None:
        raise UnusableSnapshot("the end marker is missing")
    return reader.finish(taken_at_millis, end)


class _SnapshotReader:
    """Takes one chunk after the other. Brokers come before topics, because they are written in this order."""

    def __init__(self, transaction: Transaction) -> None:
        """Starts without rows. Brokers are unconfirmed, whatever the snapshot says of them."""
        self._transaction = transaction
        self._last_update_millis: dict[LiveKey, int] = {}
        self._clusters: dict[str, set[str]] = {}
        self._topics: set[str] = set()
        self._topic_configs: dict[BrokerKey, list[ReportedTopic]] = {}
        """The topics of each group with the permissions that its broker reported, not those in force."""
        self._queue_data_count = 0
        self._queue_datas: dict[bytes, tuple[BrokerKey, Callable[[ReportedTopic], None], ReportedQueues]] = {}
        """Each different QueueData by its encoding: there are few of them, and hundreds of thousands of rows."""

    def finish(self, taken_at_millis: int, end: route_service_pb2.SnapshotEnd) -> LoadedSnapshot:
        """Puts the topics, once everything fits together."""
        transaction = self._transaction
        counted = (
            (end.cluster_count, len(self._clusters), "clusters"),
            (end.broker_data_count, len(transaction.groups), "broker groups"),
            (end.live_broker_count, len(transaction.live), "live brokers"),
            (end.topic_count, len(self._topics), "topics"),
            (end.queue_data_count, self._queue_data_count, "queue datas"),
        )
        for stated, read, what in counted:
            _check(stated == read, f"the end marker counts {stated} {what}, and there are {read}")
        named = {BrokerKey(cluster, name) for cluster, names in self._clusters.items() for name in names}
        _check(named == transaction.groups.keys(), "the clusters name other broker groups than there are")
        members = {(key, member) for key, group in transaction.groups.items() if group for member in group.members}
        live = {(live.broker, live.as_member()) for live in transaction.live.values() if live}
        _check(members == live, "the broker groups have other members than there are live brokers")
        _check(transaction.filters.keys() <= transaction.live.keys(), "there are filter servers of no live broker")
        for broker, configs in self._topic_configs.items():
            transaction.put_topics(broker, configs)
        return LoadedSnapshot(taken_at_millis, len(self._topics), self._last_update_millis)

    def take(self, chunk: route_service_pb2.SnapshotChunk) -> None:
        """Reads rows. Raises UnusableSnapshot if some cannot be there."""
        transaction = self._transaction
        for cluster in chunk.clusters:
            self._clusters[cluster.cluster_name] = set(cluster.broker_names)
        for group in paced(map(_group_of, chunk.broker_datas)):
            _check(group.key not in transaction.groups, f"broker group {group.key} is there twice")
            _check(bool(group.members), f"broker group {group.key} has no members")
            self._topic_configs[group.key] = []
            transaction.put_group(group)
        for filters in chunk.filter_servers:
            key = LiveKey(filters.cluster_name, filters.broker_addr)
            transaction.put_filter_servers(key, tuple(filters.filter_servers))
        for row in paced(chunk.live_brokers):
            live = _live_of(row)
            transaction.put_live(live)
            self._last_update_millis[live.key] = row.last_update_timestamp_millis
        self._take_topics(chunk)

    def _take_topics(self, chunk: route_service_pb2.SnapshotChunk) -> None:
        # Each call in this loop adds to the time of a start, and most of that time is spent here.
        known = self._queue_datas
        for row in paced(chunk.topics):
            topic = row.topic
            _check(topic not in self._topics, f"topic {topic!r} is there twice")
            self._topics.add(topic)
            before = _NO_BROKER
            for queue_data in row.queue_datas:
                encoded = queue_data.SerializeToString()
                broker, add, reported = known.get(encoded) or self._take_queue_data(encoded, queue_data)
                if broker <= before:
                    raise UnusableSnapshot(f"the queues of topic {topic!r} are not in the order of their groups")
                before = broker
                add((topic, reported))
                self._queue_data_count += 1
            _check(before is not _NO_BROKER, f"topic {topic!r} has no queues")

    def _take_queue_data(
        self, encoded: bytes, row: route_data_pb2.QueueData
    ) -> tuple[BrokerKey, Callable[[ReportedTopic], None], ReportedQueues]:
        broker = BrokerKey(row.cluster_name, row.broker_name)
        _check(broker in self._topic_configs, f"there are queues of {broker}, which is no broker group")
        meaning = (broker, self._topic_configs[broker].append, _reported_of(row))
        self._queue_datas[encoded] = meaning
        return meaning


def _group_of(row: route_data_pb2.BrokerData) -> BrokerData:
    """A broker group from its row on the wire, with all of its brokers unconfirmed."""
    return BrokerData(
        BrokerKey(row.cluster_name, row.broker_name),
        tuple(sorted(map(_member_of, row.broker_addrs))),
        zone_name=row.zone_name if row.HasField("zone_name") else None,
        enable_acting_master=row.enable_acting_master if row.HasField("enable_acting_master") else None,
    )


def _live_of(row: route_data_pb2.BrokerLiveInfo) -> BrokerLiveInfo:
    """A live broker from its row on the wire, unconfirmed and without its channel."""
    version = row.data_version
    return BrokerLiveInfo(
        broker=BrokerKey(row.cluster_name, row.broker_name),
        broker_id=row.broker_id,
        broker_addr=row.broker_addr,
        ha_server_addr=row.ha_server_addr if row.HasField("ha_server_addr") else None,
        data_version=DataVersion(version.timestamp_millis, version.counter, version.state_version),
        channel_id=None,
        generation=row.generation,
        timeout_seconds=row.heartbeat_timeout_millis / 1000,
        unconfirmed=True,
        topic_by_topic=row.topic_by_topic,
        labels=tuple(sorted(row.labels.items())),
    )


def _member_of(row: route_data_pb2.BrokerAddr) -> Member:
    labels = tuple(sorted(row.labels.items()))
    return Member(row.broker_id, row.broker_addr, unconfirmed=True, labels=labels)


def _reported_of(row: route_data_pb2.QueueData) -> ReportedQueues:
    """Counts, permission as reported, flags, and a static topic's mapping, from a row on the wire."""
    perm = row.reported_perm if row.HasField("reported_perm") else row.perm
    numbers = row.read_queue_nums, row.write_queue_nums, perm, row.topic_sys_flag
    if not row.HasField("mapping"):
        return numbers
    mapping = row.mapping
    queue_ids = tuple(zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=False))
    return (*numbers, StaticMapping(mapping.scope, mapping.total_queue_nums, mapping.epoch, mapping.dirty, queue_ids))


def _check(condition: bool, problem: str) -> None:
    if not condition:
        raise UnusableSnapshot(problem)
