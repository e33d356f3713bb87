"""The reader of a snapshot file's messages, into empty tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    LiveKey,
    Member,
    ReportedQueues,
    ReportedTopic,
    StaticMapping,
)
from namesrv.core.pace import paced
from namesrv.core.transaction import Transaction

_Message = route_service_pb2.StreamRouteSnapshotResponse
_Chunk = route_service_pb2.SnapshotChunk
_NO_BROKER = BrokerKey("", "")
"""Sorts before every group."""

MAX_DIFFERENT_QUEUES = 500_000
"""Most different rows of queues that are remembered by their encoding: each takes 500 bytes, and a fleet of 10,000
brokers has some ten thousand. Above it the reader forgets all and remembers those that follow."""


class UnusableSnapshot(Exception):
    """The messages are not what a name server writes: they do not fit together. The text says where."""


@dataclass(slots=True)
class LoadedSnapshot:
    """The content of a snapshot, in the form that a transaction of the tables takes."""

    taken_at_millis: int = 0
    """When it was taken, by the wall clock, milliseconds since the Unix epoch."""
    topic_count: int = 0
    groups: dict[BrokerKey, BrokerData] = field(default_factory=dict)
    live: dict[LiveKey, BrokerLiveInfo] = field(default_factory=dict)
    last_update_millis: dict[LiveKey, int] = field(default_factory=dict)
    """When each live broker was last seen, by the wall clock."""
    filter_servers: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    topic_configs: dict[BrokerKey, list[ReportedTopic]] = field(default_factory=dict)
    """The topics of each group with the permissions that its broker reported, not those in force."""

    def put_into(self, transaction: Transaction) -> None:
        """Puts everything into a transaction of empty tables, whose intents apply to it as to a registration."""
        for group in self.groups.values():
            transaction.put_group(group)
        for key, live in self.live.items():
            transaction.put_live(live)
            if key in self.filter_servers:
                transaction.put_filter_servers(key, self.filter_servers[key])
        for broker, configs in self.topic_configs.items():
            transaction.put_topics(broker, configs)


def read_snapshot(messages: Iterable[bytes]) -> LoadedSnapshot:
    """Reads the messages that ``RouteSnapshot.messages`` made.

    All or nothing: a file has a checksum, so rows that do not fit together were written so, and then the other rows
    cannot be trusted either. The values of rows are not checked: registration has checked them.

    Raises:
        UnusableSnapshot: The messages do not make a whole snapshot whose rows fit together.
    """
    reader, taken_at_millis = _SnapshotReader(), None
    end: route_service_pb2.SnapshotEnd | None = None
    for message in messages:
        try:
            parsed = _Message.FromString(message)
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

    def __init__(self) -> None:
        """Starts without rows. Brokers are unconfirmed, whatever the snapshot says of them."""
        self._loaded = LoadedSnapshot()
        self._clusters: dict[str, set[str]] = {}
        self._topics: set[str] = set()
        self._queue_data_count = 0
        self._queue_datas: dict[bytes, tuple[BrokerKey, Callable[[ReportedTopic], None], ReportedQueues]] = {}
        """Each different QueueData by its encoding: there are few of them, and hundreds of thousands of rows."""

    def finish(self, taken_at_millis: int, end: route_service_pb2.SnapshotEnd) -> LoadedSnapshot:
        """What was read, once everything fits together."""
        loaded = self._loaded
        loaded.taken_at_millis, loaded.topic_count = taken_at_millis, len(self._topics)
        counted = (
            (end.cluster_count, len(self._clusters), "clusters"),
            (end.broker_data_count, len(loaded.groups), "broker groups"),
            (end.live_broker_count, len(loaded.live), "live brokers"),
            (end.topic_count, loaded.topic_count, "topics"),
            (end.queue_data_count, self._queue_data_count, "queue datas"),
        )
        for stated, read, what in counted:
            _check(stated == read, f"the end marker counts {stated} {what}, and there are {read}")
        self._check_brokers()
        return loaded

    def _check_brokers(self) -> None:
        loaded = self._loaded
        named = {BrokerKey(cluster, name) for cluster, names in self._clusters.items() for name in names}
        _check(named == loaded.groups.keys(), "the clusters name other broker groups than there are")
        members = {(key, member) for key, group in loaded.groups.items() for member in group.members}
        live = {(live.broker, live.as_member()) for live in loaded.live.values()}
        _check(members == live, "the broker groups have other members than there are live brokers")
        _check(loaded.filter_servers.keys() <= loaded.live.keys(), "there are filter servers of no live broker")

    def take(self, chunk: _Chunk) -> None:
        """Reads rows. Raises UnusableSnapshot if some cannot be there."""
        loaded = self._loaded
        for cluster in chunk.clusters:
            self._clusters[cluster.cluster_name] = set(cluster.broker_names)
        for group in paced(map(group_of, chunk.broker_datas)):
            _check(group.key not in loaded.groups, f"broker group {group.key} is there twice")
            _check(bool(group.members), f"broker group {group.key} has no members")
            loaded.topic_configs[group.key] = []
            loaded.groups[group.key] = group
        for filters in chunk.filter_servers:
            key = LiveKey(filters.cluster_name, filters.broker_addr)
            loaded.filter_servers[key] = tuple(filters.filter_servers)
        for row in paced(chunk.live_brokers):
            live = live_of(row)
            loaded.live[live.key] = live
            loaded.last_update_millis[live.key] = row.last_update_timestamp_millis
        self._take_topics(chunk)

    def _take_topics(self, chunk: _Chunk) -> None:
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
        _check(broker in self._loaded.groups, f"there are queues of {broker}, which is no broker group")
        meaning = (broker, self._loaded.topic_configs[broker].append, reported_of(row))
        if len(self._queue_datas) >= MAX_DIFFERENT_QUEUES:
            self._queue_datas.clear()
        self._queue_datas[encoded] = meaning
        return meaning


def group_of(row: route_data_pb2.BrokerData) -> BrokerData:
    """A broker group from its row on the wire, with all of its brokers unconfirmed."""
    return BrokerData(
        BrokerKey(row.cluster_name, row.broker_name),
        tuple(sorted(map(_member_of, row.broker_addrs))),
        zone_name=row.zone_name if row.HasField("zone_name") else None,
        enable_acting_master=row.enable_acting_master if row.HasField("enable_acting_master") else None,
    )


def live_of(row: route_data_pb2.BrokerLiveInfo) -> BrokerLiveInfo:
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


def reported_of(row: route_data_pb2.QueueData) -> ReportedQueues:
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
