"""The five tables: how rows are encoded and stored, and the indexes that go with them."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, NamedTuple, Self, TypeVar

from namesrv_api.v1 import admin_service_pb2, route_data_pb2, route_service_pb2

from namesrv.core.model import (
    WRITE,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    Doubted,
    Intent,
    LiveKey,
    QueueData,
    QueueNumbers,
    RemovalReason,
    ReportedQueues,
    StaticMapping,
    TopicQueues,
    TopicTableFingerprint,
    WriteRule,
    perm_under,
)
from namesrv.core.pace import paced, yield_point

# The pieces of encoded protobuf that answers are joined from: encoded once when a row changes, joined at each lookup.
#
# A protobuf message is the concatenation of its fields, so an answer is a join of framed pieces. The same piece serves
# several messages because they give the field the same number; the asserts below hold that together.

_LENGTH_DELIMITED = 2

_ROUTE = route_data_pb2.TopicRouteData
_MAPPING = route_data_pb2.StaticTopicMapping
_CHUNK = route_service_pb2.SnapshotChunk
_CLUSTER_INFO = route_service_pb2.GetBrokerClusterInfoResponse
_CHANGED_NUMBER = "the wire contract gives one field two numbers"
assert _ROUTE.QUEUE_DATAS_FIELD_NUMBER == route_service_pb2.TopicQueues.QUEUE_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.BROKER_DATAS_FIELD_NUMBER == _CHUNK.BROKER_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.BROKER_DATAS_FIELD_NUMBER == _CLUSTER_INFO.BROKER_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.FILTER_SERVERS_FIELD_NUMBER == _CHUNK.FILTER_SERVERS_FIELD_NUMBER, _CHANGED_NUMBER


def varint(value: int) -> bytes:
    """A non-negative number in protobuf's base-128 encoding."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SHORT = tuple(varint(number) for number in range(1 << 14))
"""Lengths are nearly always below 16 Ki: encoding one is then an index."""


@cache
def tag(field_number: int) -> bytes:
    """The tag that a length-delimited field starts with."""
    return varint(field_number << 3 | _LENGTH_DELIMITED)


def frame(field_number: int, *parts: bytes) -> bytes:
    """A payload, in parts, as one length-delimited field of a message."""
    payload = b"".join(parts)
    length = _SHORT[len(payload)] if len(payload) < len(_SHORT) else varint(len(payload))
    return b"".join((tag(field_number), length, payload))


def queue_data_fragment(
    broker: BrokerKey, numbers: QueueNumbers, mapping: bytes = b"", reported_perm: int | None = None
) -> bytes:
    """A QueueData, framed as the field queue_datas. A mapping must be framed as ``mapping_field`` makes it."""
    read_queue_nums, write_queue_nums, perm, topic_sys_flag = numbers
    message = route_data_pb2.QueueData(
        broker_name=broker.broker_name,
        cluster_name=broker.cluster_name,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
        reported_perm=reported_perm,
    )
    # The mapping is the field with the highest number.
    return frame(_ROUTE.QUEUE_DATAS_FIELD_NUMBER, message.SerializeToString(), mapping)


def mapping_field(mapping: StaticMapping) -> bytes:
    """A static topic's mapping, framed as the field mapping of a QueueData.

    A topic may have tens of thousands of queues: encoding them takes milliseconds, and is done once.
    """
    scope, total_queues, epoch, is_dirty, queue_ids = mapping
    head = _MAPPING(scope=scope, total_queue_nums=total_queues, epoch=epoch, dirty=is_dirty)
    # The lists are the last two fields, so the parts are the message.
    parts = [head.SerializeToString()]
    yield_point()
    parts.append(_MAPPING(topic_queue_ids=[queue for queue, _ in queue_ids]).SerializeToString())
    yield_point()
    parts.append(_MAPPING(broker_queue_ids=[queue for _, queue in queue_ids]).SerializeToString())
    yield_point()
    return frame(route_data_pb2.QueueData.MAPPING_FIELD_NUMBER, *parts)


def broker_data_fragment(group: BrokerData) -> bytes:
    """A BrokerData, framed as the field broker_datas."""
    # The same rows must give the same bytes, and a map has no order of its own.
    return frame(_ROUTE.BROKER_DATAS_FIELD_NUMBER, broker_data(group).SerializeToString(deterministic=True))


def broker_data(group: BrokerData) -> route_data_pb2.BrokerData:
    message = route_data_pb2.BrokerData(
        cluster_name=group.key.cluster_name,
        broker_name=group.key.broker_name,
        broker_addrs=[
            route_data_pb2.BrokerAddr(broker_id=one.broker_id, broker_addr=one.broker_addr, labels=dict(one.labels))
            for one in group.members
        ],
        zone_name=group.zone_name,
        unconfirmed_broker_ids=[member.broker_id for member in group.unconfirmed],
    )
    if group.enable_acting_master is not None:
        message.enable_acting_master = group.enable_acting_master
    return message


def filter_servers_fragment(key: LiveKey, filter_servers: Iterable[str]) -> bytes:
    """A FilterServerData, framed as the field filter_servers."""
    return frame(_ROUTE.FILTER_SERVERS_FIELD_NUMBER, filter_server_data(key, filter_servers).SerializeToString())


def filter_server_data(key: LiveKey, filter_servers: Iterable[str]) -> route_data_pb2.FilterServerData:
    cluster_name, broker_addr = key
    return route_data_pb2.FilterServerData(
        cluster_name=cluster_name, broker_addr=broker_addr, filter_servers=filter_servers
    )


def cluster_data(cluster_name: str, broker_names: Iterable[str]) -> route_data_pb2.ClusterData:
    return route_data_pb2.ClusterData(cluster_name=cluster_name, broker_names=sorted(broker_names))


def broker_live_info(
    live: BrokerLiveInfo, last_update_millis: int, doubted: Doubted | None = None
) -> route_data_pb2.BrokerLiveInfo:
    version = live.data_version
    return route_data_pb2.BrokerLiveInfo(
        cluster_name=live.broker.cluster_name,
        broker_name=live.broker.broker_name,
        broker_id=live.broker_id,
        broker_addr=live.broker_addr,
        ha_server_addr=live.ha_server_addr,
        data_version=route_data_pb2.DataVersion(
            timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
        ),
        last_update_timestamp_millis=last_update_millis,
        generation=live.generation,
        has_channel=live.channel_id is not None,
        heartbeat_timeout_millis=round(live.timeout_seconds * 1000),
        unconfirmed=live.unconfirmed,
        topic_by_topic=live.topic_by_topic,
        labels=dict(live.labels),
        doubt_ends_at_millis=None if doubted is None else doubted.ends_at_millis,
        doubt_reason=None if doubted is None else route_data_pb2.DoubtReason.Name(doubted.why.value),
    )


def broker_removal(
    broker: BrokerKey, broker_id: int | None, broker_addr: str, reason: RemovalReason | None
) -> route_service_pb2.BrokerRemoval:
    """A broker that has left; without id and address, a group that has lost queues."""
    return route_service_pb2.BrokerRemoval(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker_id,
        broker_addr=broker_addr,
        reason=removal_reason(reason),
    )


def removal_reason(reason: RemovalReason | None) -> str | None:
    """The wire's name of a reason, which is what the generated classes are typed for."""
    return reason and route_data_pb2.RemovalReason.Name(reason.value)


def intent_message(intent: Intent) -> admin_service_pb2.Intent:
    message = admin_service_pb2.Intent(
        kind=admin_service_pb2.Intent.Kind.Name(intent.kind.value),
        cluster_name=intent.key.cluster_name,
        caller=intent.caller,
        since_millis=intent.since_millis,
        comment=intent.comment,
        ends_at_millis=intent.ends_at_millis,
    )
    if isinstance(intent.key, BrokerKey):
        message.broker_name = intent.key.broker_name
    else:
        message.topic = intent.key.topic
    return message


# A mapping that never changes: a changed copy shares with it what is the same.

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

CHUNK = 85
"""Names of a chunk, as many as fill a dictionary of 128 slots. A change copies the chunks that it touches, at 1 µs
each, and the list of all."""

SPARE = 100_000
"""Names without a row that are kept beyond as many as have one."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class PersistentMap(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """Rows by name. A reader that takes a reference has all rows of that moment, on any thread, without a copy.

    Names lie in chunks in the order of their arrival, because names that arrive together change together: a broker's
    registration changes all its topics, and their chunks are few. The chunk of a name never changes, so all versions
    share one index, which only grows. ``compacted`` begins a new one.
    """

    _index: dict[KeyT, int] = field(default_factory=dict)
    """The chunk of each name that has a row in any version."""
    chunks: tuple[dict[KeyT, ValueT], ...] = ()
    _len: int = 0
    names_version: int = 0
    """Rises when a name is added or removed."""

    def __len__(self) -> int:
        return self._len

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None  # type: ignore[arg-type]  # nothing else is in here

    def __iter__(self) -> Iterator[KeyT]:
        return itertools.chain.from_iterable(self.chunks)

    def __getitem__(self, name: KeyT) -> ValueT:
        try:
            return self.chunks[self._index[name]][name]
        except IndexError:  # added later
            raise KeyError(name) from None

    def get(self, name: KeyT, default: ValueT | None = None) -> ValueT | None:  # type: ignore[override]  # quicker
        number = self._index.get(name)
        if number is None or number >= len(self.chunks):
            return default
        return self.chunks[number].get(name, default)

    def rows(self) -> Iterator[tuple[KeyT, ValueT]]:
        return itertools.chain.from_iterable(chunk.items() for chunk in self.chunks)

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> PersistentMap[KeyT, ValueT]:
        """The same rows but for some that are added, replaced or, with None, removed.

        Only one thread at a time may call it, for any version. It has yield points.
        """
        if not changes:
            return self
        index, chunks, copies = self._index, list(self.chunks), dict[int, dict[KeyT, ValueT]]()
        length, has_same_names = self._len, True
        for name, value in paced(changes.items()):
            number = index.get(name)
            if number is None:
                number = index[name] = len(index) // CHUNK
            chunk = copies.get(number)
            if chunk is None:
                while number >= len(chunks):
                    chunks.append({})
                chunk = copies[number] = chunks[number] = chunks[number].copy()
            if (name in chunk) is (value is None):
                has_same_names = False
                length += -1 if value is None else 1
            if value is not None:
                chunk[name] = value
            else:
                chunk.pop(name, None)
        return PersistentMap(index, tuple(chunks), length, self.names_version + (not has_same_names))

    @property
    def is_sparse(self) -> bool:
        """Whether more names have no row than have one, and ``compacted`` pays."""
        return len(self._index) > 2 * self._len + SPARE

    def compacted(self) -> PersistentMap[KeyT, ValueT]:
        """The same rows without the names that have none; this map if that does not pay."""
        if not self.is_sparse:
            return self
        fresh = PersistentMap[KeyT, ValueT](names_version=self.names_version - bool(self._len))
        return fresh.changed(dict(paced(self.rows())))


# All QueueDatas: one instance for each group and what it reports, found again by the fragment that rows hold.

UNUSED_PER_BROKER = 4_096
"""QueueDatas of one group that may be kept beyond twice those in use: a broker that cycles through counts must not
grow memory."""

QUEUES_LIKE_A_QUEUE_DATA = 50
"""Queues in the mapping of a static topic that take as much memory as a QueueData. One mapping may have tens of
thousands."""


class QueueDataTable:
    """Interned QueueDatas. A fragment names its group, so no two groups share one."""

    def __init__(self) -> None:
        self._by_fragment: dict[bytes, QueueData] = {}
        """Every QueueData by the fragment of what is reported."""
        self.in_force: dict[bytes, bytes] = {}
        """Fragment to the one in force, only of groups with another rule than REPORTED. Replaced, never changed."""
        self._by_reported: dict[BrokerKey, dict[ReportedQueues, QueueData]] = {}
        self.mapped: set[BrokerKey] = set()
        """Groups that have reported a static topic."""
        self.weights: dict[BrokerKey, int] = {}
        """How many QueueDatas of each group are here, their mappings counted by size."""
        self._weights_kept: dict[BrokerKey, int] = {}
        """How many were in use at the last check."""
        self._in_force_by_group: dict[BrokerKey, dict[bytes, bytes]] = {}

    def find(self, fragment: bytes) -> QueueData | None:
        """The same, for an earlier row; None if its group was removed or has reported otherwise since."""
        return self._by_fragment.get(fragment)

    def of(self, fragment: bytes) -> QueueData:
        """The QueueData that a row of the topic table holds as a fragment."""
        return self._by_fragment[fragment]

    def place(self, queues: TopicQueues, broker: BrokerKey) -> tuple[int, bool]:
        """Where a group's queues are among a topic's, or would be, and whether they are there."""
        find = self.of
        index = bisect_left(queues, broker, key=lambda present: find(present).broker)
        return index, index < len(queues) and find(queues[index]).broker == broker

    def of_broker(self, queues: TopicQueues, broker: BrokerKey) -> QueueData | None:
        """A group's queues among a topic's; None if it has none."""
        index, is_there = self.place(queues, broker)
        return self.of(queues[index]) if is_there else None

    def of_group(self, broker: BrokerKey) -> dict[ReportedQueues, QueueData]:
        """The QueueDatas of a group, to look one up without a call; ``added`` adds to it."""
        return self._by_reported.setdefault(broker, {})

    def encoded(self, broker: BrokerKey, reported: Iterable[ReportedQueues]) -> dict[ReportedQueues, QueueData]:
        """Makes the QueueDatas of what a group has not reported yet, with yield points. Reads rows that may change."""
        known, made = self._by_reported.get(broker, {}), dict[ReportedQueues, QueueData]()
        for queues in paced(reported):
            if queues not in known and queues not in made:
                made[queues] = _queue_data(broker, queues)
        return made

    def added(self, broker: BrokerKey, reported: ReportedQueues, made: QueueData | None = None) -> QueueData:
        """Adds the QueueData of what a group has not reported yet, and makes it unless it is ``made``."""
        queue_data = made or _queue_data(broker, reported)
        self.of_group(broker)[reported] = queue_data
        self._by_fragment[queue_data.fragment] = queue_data
        self.weights[broker] = self.weights.get(broker, 0) + _weight(queue_data)
        if queue_data.mapping is not None:
            self.mapped.add(broker)
        return queue_data

    def set_rule(self, broker: BrokerKey, rule: WriteRule) -> None:
        """Puts a rule in force for all that a group has; call it again when QueueDatas have been added under one."""
        reported = rule is WriteRule.REPORTED
        interned = () if reported else self._by_reported.get(broker, {}).values()
        after = {queue_data.fragment: queue_data.fragments[rule] for queue_data in interned}
        if after == self._in_force_by_group.get(broker, {}):
            return
        self._in_force_by_group[broker] = after
        if not after:
            del self._in_force_by_group[broker]
        self.in_force = {key: value for group in self._in_force_by_group.values() for key, value in group.items()}

    def is_crowded(self, broker: BrokerKey) -> bool:
        """Whether a group has so many QueueDatas that ``keep_only`` pays."""
        return self.weights.get(broker, 0) > UNUSED_PER_BROKER + 2 * self._weights_kept.get(broker, 0)

    def keep_only(self, broker: BrokerKey, used: Iterable[QueueData]) -> None:
        """Drops the QueueDatas of a group that no row uses."""
        kept = {queue_data.reported: queue_data for queue_data in used}
        for reported, queue_data in self._by_reported.get(broker, {}).items():
            if reported not in kept:
                del self._by_fragment[queue_data.fragment]
        self._by_reported[broker] = kept
        self.weights[broker] = self._weights_kept[broker] = sum(map(_weight, kept.values()))

    def forget_group(self, broker: BrokerKey) -> None:
        """Drops everything of a group that has lost all rows."""
        self.set_rule(broker, WriteRule.REPORTED)
        self.mapped.discard(broker)
        self.weights.pop(broker, None)
        self._weights_kept.pop(broker, None)
        for queue_data in self._by_reported.pop(broker, {}).values():
            del self._by_fragment[queue_data.fragment]


def _weight(queue_data: QueueData) -> int:
    mapping = queue_data.mapping
    return 1 if mapping is None else 1 + len(mapping.queue_ids) // QUEUES_LIKE_A_QUEUE_DATA


def _queue_data(broker: BrokerKey, reported: ReportedQueues) -> QueueData:
    read, write, perm, flag, *rest = reported
    mapping = rest[0] if rest else None
    encoded = b"" if mapping is None else mapping_field(mapping)
    other_perm = perm ^ WRITE  # in force where a rule changes it
    by_perm = {
        perm: queue_data_fragment(broker, (read, write, perm, flag), encoded),
        other_perm: queue_data_fragment(broker, (read, write, other_perm, flag), encoded, reported_perm=perm),
    }
    fragments = tuple(by_perm[perm_under(rule, perm)] for rule in WriteRule)
    return QueueData(broker, read, write, perm, flag, fragments[0], fragments, mapping)


# The tables of a name server.


@dataclass(slots=True, eq=False)
class KeptDigest:
    """The digest of all that a group reports."""

    value: bytes | None = None
    """None until it is computed."""


class Tables(NamedTuple):
    """The tables of RocketMQ's RouteInfoManager at one moment. A commit replaces all of them as one.

    A reader that takes a reference has all rows of that moment, on any thread. The fifth table, of clusters, follows
    from the names of groups.
    """

    topic_queue_table: PersistentMap[str, TopicQueues]
    broker_addr_table: PersistentMap[BrokerKey, BrokerData]
    broker_live_table: PersistentMap[LiveKey, BrokerLiveInfo]
    filter_server_table: PersistentMap[LiveKey, tuple[str, ...]]

    @classmethod
    def empty(cls) -> Self:
        return cls(PersistentMap(), PersistentMap(), PersistentMap(), PersistentMap())


@dataclass(slots=True)
class TableIndex:
    """Indexes of the current tables, and what brokers report that is in no table.

    A commit changes them in the step that replaces the tables.
    """

    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    clusters_by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    """Clusters that have a group of a name, in the order in which these groups were added. Routes in RocketMQ's
    protocol name no cluster: they show the first."""
    topics_by_broker: dict[BrokerKey, dict[str, None]] = field(default_factory=dict)
    """Topics that have queues on each group, so that losing a broker does not walk all topics. Dictionaries from names
    to None, because the garbage collector looks at sets and not at these."""
    held_queue_table: dict[str, dict[BrokerKey, QueueData]] = field(default_factory=dict)
    """What brokers report of topics that operators hold back, by topic."""
    held_by_group: dict[BrokerKey, dict[str, QueueData]] = field(default_factory=dict)
    """The same by group."""
    table_fingerprints: dict[BrokerKey, TopicTableFingerprint | None] = field(default_factory=dict)
    """The table of each group that is here, or held back, as a whole; None or absent if it is not known whole. A change
    of the group's queues removes it."""
    digests: dict[BrokerKey, KeptDigest] = field(default_factory=dict)
    """Digests of groups that somebody has asked for. A change of what the group reports removes its digest."""
    queue_datas: QueueDataTable = field(default_factory=QueueDataTable)

    def table_changed(self, broker: BrokerKey) -> None:
        """Forgets the fingerprint and the digest of all that a group reports."""
        self.table_fingerprints.pop(broker, None)
        self.digests.pop(broker, None)

    def names_of_groups(self) -> frozenset[str]:
        """Names of clusters and broker groups. Each has a topic of its own name."""
        return frozenset(self.cluster_addr_table).union(self.clusters_by_name)


def is_in_zone(group: BrokerData, zone_name: str, *, acting: bool) -> bool:
    """Whether a group is in routes for a zone, which show acting masters or do not.

    As in RocketMQ, a group that is shown without a master, real or acting, stays whatever its zone.
    """
    if not group.has_master and not (acting and group.acting_fragment):
        return True
    return group.zone_name is not None and group.zone_name.casefold() == zone_name.casefold()
