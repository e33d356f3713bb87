"""Digests of what each broker group reports, to compare name servers with little traffic."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from namesrv.core.changes import Change, ChangeLog, GroupRemoved, QueuesPut, QueuesRemoved
from namesrv.core.errors import Overloaded
from namesrv.core.model import BrokerKey, BrokerLiveInfo, LiveKey, QueueData, StaticMapping
from namesrv.core.slices import Sliced, sorted_in_slices
from namesrv.core.tables import Tables

SLICE = 500
"""Topics that are put into a digest before giving way: about a millisecond."""

GROUP_COST = 5
"""How many topics a group counts as whose digest is known already."""

MAX_TRIES = 20
"""Most tries at the digest of a group that changes all the time. Each try takes some 2 ms for 1,000 topics."""


class Position(NamedTuple):
    """A place in the list. It names what it is after and not how many, so it outlives changes."""

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


@dataclass(slots=True, eq=False)
class _Entry:
    held: Mapping[str, QueueData]
    """What the group reported of held topics: a change of that is in no change log, as no reader sees it."""
    digest: bytes | None = None


class RouteDigests:
    """Makes digests and keeps them until the group's queues change: at most one for each group."""

    def __init__(self, tables: Tables, change_log: ChangeLog) -> None:
        self._tables = tables
        self._entries: dict[BrokerKey, _Entry] = {}
        change_log.listen(self._on_change)

    def after(self, position: Position, limit: int) -> Sliced[list[DigestedBroker]]:
        """The brokers after a position, by cluster, name and id, at most ``limit``.

        Each digest is of what its group reports at one moment, at which the broker has the version beside it. A broker
        that stays while the list is made shows in it; one that comes or goes meanwhile may or may not.

        Raises:
            Overloaded: A group changes faster than its digest can be made.
        """
        found: list[DigestedBroker] = []
        clusters = yield from sorted_in_slices(self._tables.cluster_addr_table)
        cost = 0
        for cluster_name in clusters[bisect_left(clusters, position.cluster_name) :]:
            names = yield from sorted_in_slices(self._tables.cluster_addr_table.get(cluster_name, ()))
            first = bisect_left(names, position.broker_name) if cluster_name == position.cluster_name else 0
            for broker_name in names[first:]:
                broker = BrokerKey(cluster_name, broker_name)
                digest = yield from self._of_group(broker)
                brokers = () if digest is None else self._brokers(broker, digest)
                found += (row for row in brokers if row.position > position)
                if len(found) >= limit:
                    return found[:limit]
                cost += GROUP_COST + len(self._tables.held_queue_table)
                if cost >= SLICE:
                    cost = 0
                    yield
        return found

    def _brokers(self, broker: BrokerKey, digest: bytes) -> Iterator[DigestedBroker]:
        tables = self._tables
        for _, addr in sorted(tables.broker_addr_table[broker].addrs.items()):
            yield DigestedBroker(tables.broker_live_table[LiveKey(broker.cluster_name, addr)], digest)

    def _of_group(self, broker: BrokerKey) -> Sliced[bytes | None]:
        """The digest of a group as it is when this returns; None if there is no such group (any more)."""
        for _ in range(MAX_TRIES):
            if broker not in self._tables.broker_addr_table:
                return None
            held = self._held_of(broker)
            entry = self._entries.get(broker)
            if entry is None or entry.held != held:
                entry = self._entries[broker] = _Entry(held)
            if entry.digest is not None:
                return entry.digest
            # If the group changes meanwhile, this entry is not found again, and the next round begins another.
            entry.digest = yield from self._digest(broker, held)
        raise Overloaded(f"broker group {broker.broker_name} of cluster {broker.cluster_name} changes all the time")

    def _digest(self, broker: BrokerKey, held: Mapping[str, QueueData]) -> Sliced[bytes]:
        """Reads the tables in slices: what comes out means nothing if the group has changed meanwhile."""
        topics: Collection[str] = self._tables.topics_by_broker.get(broker, {})
        if held:
            topics = {*topics, *held}
        sha256 = hashlib.sha256()
        lines: list[str] = []
        for topic in (yield from sorted_in_slices(topics)):  # by code points, which is the order of the UTF-8 bytes
            queue_data = held.get(topic) or self._queue_data(topic, broker)
            if queue_data is not None:
                read, write, perm, flag = queue_data.numbers
                rest = "" if queue_data.mapping is None else _mapping_text(queue_data.mapping)
                lines.append(f"{topic} {read} {write} {perm} {flag}{rest}\n")
            if len(lines) == SLICE:
                sha256.update("".join(lines).encode())
                lines.clear()
                yield
        sha256.update("".join(lines).encode())
        yield
        return sha256.digest()

    def _queue_data(self, topic: str, broker: BrokerKey) -> QueueData | None:
        """What a group reports of a topic that is not held; None if the topic has gone from it meanwhile."""
        queues, find = self._tables.topic_queue_table.get(topic) or (), self._tables.queue_datas.by_fragment
        index = bisect_right(queues, broker, key=lambda fragment: find[fragment].broker) - 1
        queue_data = find[queues[index]] if index >= 0 else None
        return queue_data if queue_data is not None and queue_data.broker == broker else None

    def _held_of(self, broker: BrokerKey) -> dict[str, QueueData]:
        table = self._tables.held_queue_table
        return {topic: holders[broker] for topic, holders in table.items() if broker in holders}

    def _on_change(self, change: Change) -> None:
        for row in change.rows:
            if isinstance(row, QueuesPut | QueuesRemoved):
                self._entries.pop(row.broker, None)
            elif isinstance(row, GroupRemoved):
                self._entries.pop(row.before.key, None)


def _mapping_text(mapping: StaticMapping) -> str:
    """The end of a static topic's line."""
    scope, total_queues, epoch, is_dirty, queue_ids = mapping
    ids = "".join(f" {topic_queue_id}:{broker_queue_id}" for topic_queue_id, broker_queue_id in queue_ids)
    return f" {scope} {total_queues} {epoch} {int(is_dirty)}{ids}"
