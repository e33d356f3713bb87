"""The five tables: how rows are stored, and the indexes that go with them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from namesrv.core import encoding
from namesrv.core.model import (
    WRITE,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    ReportedQueues,
    TopicQueues,
    TopicTableFingerprint,
    WriteRule,
    perm_under,
)
from namesrv.core.pace import paced
from namesrv.core.persistent_map import PersistentMap

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
    encoded = b"" if mapping is None else encoding.mapping_field(mapping)
    other_perm = perm ^ WRITE  # in force where a rule changes it
    by_perm = {
        perm: encoding.queue_data_fragment(broker, (read, write, perm, flag), encoded),
        other_perm: encoding.queue_data_fragment(broker, (read, write, other_perm, flag), encoded, reported_perm=perm),
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
    to None, because the garbage collector looks at sets and not at these.
    """
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
