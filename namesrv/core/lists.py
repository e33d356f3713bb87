"""Lists in pages: names of topics (RocketMQ: TopicList), and brokers with digests of what their groups report."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from namesrv.core.model import BrokerKey, BrokerLiveInfo, QueueData, StaticMapping, TopicQueues
from namesrv.core.pace import Sliced, paced, run_steps, sorted_in_slices, yield_point
from namesrv.core.tables import KeptDigest, PersistentMap, TableIndex, Tables
from namesrv_common.topic_names import Labels

# Names of topics: sorted, and only as many as a page needs.

UNIT = 1
"""Flag bit of a unit topic (TopicSysFlag.FLAG_UNIT)."""

UNIT_SUB = 2
"""Flag bit of a unit-subscription topic (TopicSysFlag.FLAG_UNIT_SUB)."""

NamesAfter = Callable[[str, int], list[str]]
"""The sorted names of a list after a name, at most so many. For a thread."""


class SortedNames:
    """All topic names of one moment, sorted when they are first asked for."""

    def __init__(self, topics: PersistentMap[str, TopicQueues]) -> None:
        self.version = topics.names_version
        self._topics: PersistentMap[str, TopicQueues] | None = topics
        self._names: list[str] = []

    def get(self) -> list[str]:
        """The names. Sorting very many takes long, with yield points: for a thread."""
        return run_steps(self.in_steps())

    def in_steps(self) -> Sliced[list[str]]:
        """The same, for the event loop."""
        if (topics := self._topics) is not None:
            self._names = yield from sorted_in_slices(topics)
            self._topics = None
        return self._names


class TopicLists:
    """Lists of topics, in pages. Each list is taken on the event loop, in one step, and read on a thread."""

    def __init__(self, tables: Callable[[], Tables], index: TableIndex) -> None:
        """Takes what returns the tables now, and their index."""
        self._tables = tables
        self._index = index
        self._names: SortedNames | None = None
        """The names of the last request."""

    def names(self) -> SortedNames:
        """The names of all topics (RocketMQ: getAllTopicList)."""
        topics = self._tables().topic_queue_table
        if self._names is None or self._names.version != topics.names_version:
            self._names = SortedNames(topics)
        return self._names

    def all(self) -> NamesAfter:
        """All topics."""
        names = self.names()
        return lambda after, limit: _page(names.get(), after, limit)

    def of_cluster(self, cluster_name: str) -> NamesAfter:
        """Topics with queues on any broker group of a cluster (RocketMQ: getTopicsByCluster)."""
        if cluster_name not in self._index.cluster_addr_table:
            return lambda _after, _limit: []
        find = self._index.queue_datas.find
        return self._matching(
            lambda queues: any(data.broker.cluster_name == cluster_name for data in map(find, queues) if data)
        )

    def with_flags(self, present: int, absent: int) -> NamesAfter:
        """Topics with some flag bits and without others (RocketMQ: getUnitTopics and the two after it).

        As there, the topic's first QueueData alone decides; here that is of the first group by cluster and name.
        """
        find = self._index.queue_datas.find

        def matches(queues: TopicQueues) -> bool:
            first = find(queues[0])
            return first is not None and first.topic_sys_flag & (present | absent) == present

        return self._matching(matches)

    def system(self) -> NamesAfter:
        """Names of clusters and broker groups, which are topics by convention (RocketMQ: getSystemTopicList)."""
        names = self._index.names_of_groups()
        return lambda after, limit: _page(run_steps(sorted_in_slices(names)), after, limit)

    def broker_addr(self) -> str | None:
        """Address of some broker, which knows its own system topics: the lowest id of some group."""
        table = self._tables().broker_addr_table
        first = next(iter(table), None)
        return None if first is None else table[first].members[0].broker_addr

    def _matching(self, matches: Callable[[TopicQueues], bool]) -> NamesAfter:
        """Topics whose rows match. A group that is removed while the list is read matches none from then on."""
        names, rows = self.names(), self._tables().topic_queue_table

        def after(last: str, limit: int) -> list[str]:
            found: list[str] = []
            all_names = names.get()
            for name in paced(islice(all_names, _start(all_names, last), None)):
                if matches(rows[name]):
                    found.append(name)
                    if len(found) == limit:
                        break
            return found

        return after


def _start(names: list[str], after: str) -> int:
    return bisect_right(names, after) if after else 0


def _page(names: list[str], after: str, limit: int) -> list[str]:
    start = _start(names, after)
    return names[start : start + limit]


# Digests of what each broker group reports, to compare name servers with little traffic.


class Position(NamedTuple):
    """A position in the list. It names the item before it instead of an index, so it outlives changes."""

    cluster_name: str
    broker_name: str
    broker_id: int


FRONT = Position("", "", -1)
"""Before every broker."""


class DigestedBroker(NamedTuple):
    """A live broker, and the digest of its group as of the same moment."""

    live: BrokerLiveInfo
    digest: bytes

    @property
    def position(self) -> Position:
        return Position(*self.live.broker, self.live.broker_id)


class RouteDigests:
    """Makes digests. The index of the tables keeps them, at most one for each group, until the group reports otherwise.

    A page is made in rounds. On the event loop, ``missing`` names the groups whose digest has to be computed. A thread
    has ``compute`` do so. Then ``page`` puts rows and digests of one moment together, unless a group has changed.
    """

    def __init__(self, tables: Callable[[], Tables], index: TableIndex) -> None:
        """Takes what returns the tables now, and their index."""
        self._tables = tables
        self._index = index
        self._sorted_groups: tuple[int, list[BrokerKey]] = 0, []
        """The names' version of the table of groups, and its keys in order."""

    def missing(self, position: Position, limit: int) -> list[BrokerKey]:
        """The groups of the page after a position that have no digest; empty if all have one."""
        kept = self._index.digests
        groups = list(self._groups_of_page(position, limit))
        return [broker for broker in groups if kept.setdefault(broker, KeptDigest()).value is None]

    def compute(self, groups: Iterable[BrokerKey]) -> None:
        """Computes digests, with pauses. The digest of a group that changes during a pause is never found."""
        for broker in groups:
            if (kept := self._index.digests.get(broker)) is not None:
                kept.value = self._digest(broker)
            yield_point()

    def page(self, position: Position, limit: int) -> list[DigestedBroker] | None:
        """The brokers after a position, by cluster, name and id, at most ``limit``; None if a digest is missing.

        Digest and broker are of one moment: the group reports this now, and the broker has this version.
        """
        tables, found = self._tables(), list[DigestedBroker]()
        for broker in self._groups_of_page(position, limit):
            kept = self._index.digests.get(broker)
            if kept is None or kept.value is None:
                return None
            group = tables.broker_addr_table[broker]
            for live in (tables.broker_live_table[group.live_key(member)] for member in group.members):
                row = DigestedBroker(live, _with_labels(kept.value, live.labels))
                if row.position > position:
                    found.append(row)
        return found[:limit]

    def _groups_of_page(self, position: Position, limit: int) -> Iterator[BrokerKey]:
        """The groups of the first brokers after a position, until there are enough brokers."""
        table, (version, keys) = self._tables().broker_addr_table, self._sorted_groups
        if version != table.names_version:
            keys = sorted(table)
            self._sorted_groups = table.names_version, keys
        count = 0
        for broker in islice(keys, bisect_left(keys, position[:2]), None):
            broker_ids: Collection[int] = table[broker].addrs
            if broker == position[:2]:
                broker_ids = [broker_id for broker_id in broker_ids if broker_id > position.broker_id]
            if broker_ids:
                yield broker
            count += len(broker_ids)
            if count >= limit:
                break

    def _digest(self, broker: BrokerKey) -> bytes:
        held = dict(self._index.held_by_group.get(broker, {}))  # one step, as the event loop may change it
        topics: Collection[str] = tuple(self._index.topics_by_broker.get(broker, ()))
        if held:
            topics = {*topics, *held}
        sha256 = hashlib.sha256()
        names = run_steps(sorted_in_slices(topics))  # by code points, which is the order of the UTF-8 bytes
        for topic in paced(names):
            queue_data = held.get(topic) or self._queue_data(topic, broker)
            if queue_data is not None:
                read, write, perm, flag = queue_data.numbers
                rest = "" if queue_data.mapping is None else _mapping_text(queue_data.mapping)
                sha256.update(f"{topic} {read} {write} {perm} {flag}{rest}\n".encode())
        return sha256.digest()

    def _queue_data(self, topic: str, broker: BrokerKey) -> QueueData | None:
        """A group's report of a topic that is not held, or None if the group has lost the topic in the meantime."""
        try:
            return self._index.queue_datas.of_broker(self._tables().topic_queue_table.get(topic) or (), broker)
        except KeyError:  # a group changes while this is read on a thread: if it is this one, the digest means nothing
            return None


def _with_labels(digest: bytes, labels: Labels) -> bytes:
    """The digest of one broker of a group."""
    if not labels:
        return digest
    return hashlib.sha256(digest + "".join(f"{key}={value}\n" for key, value in labels).encode()).digest()


def _mapping_text(mapping: StaticMapping) -> str:
    """The end of a static topic's line."""
    scope, total_queues, epoch, is_dirty, queue_ids = mapping
    ids = "".join(f" {topic_queue_id}:{broker_queue_id}" for topic_queue_id, broker_queue_id in queue_ids)
    return f" {scope} {total_queues} {epoch} {int(is_dirty)}{ids}"
