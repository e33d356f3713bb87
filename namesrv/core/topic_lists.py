"""Lists of topic names: sorted, and only as much of them as a page needs (RocketMQ: TopicList)."""

from __future__ import annotations

import bisect
from collections.abc import Callable

from namesrv.core.model import BrokerKey, TopicQueues
from namesrv.core.slices import Sliced, sorted_in_slices
from namesrv.core.tables import Tables

UNIT = 1
"""Flag bit of a unit topic (TopicSysFlag.FLAG_UNIT)."""

UNIT_SUB = 2
"""Flag bit of a unit-subscription topic (TopicSysFlag.FLAG_UNIT_SUB)."""

FILTER_SLICE = 2_000
"""Topics that a filter looks at before giving way: about a millisecond."""


class TopicLists:
    """Sorted lists. Each gives the names after a name, at most ``limit``; an empty ``after`` starts at the front.

    A topic that stays while a list is made shows in it; one that comes or goes meanwhile may or may not.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._names: list[str] | None = None
        """All topic names, sorted, until one comes or goes."""
        self._changes = 0

    def names_changed(self) -> None:
        self._names = None
        self._changes += 1

    def all_after(self, after: str, limit: int) -> Sliced[list[str]]:
        """All topics (RocketMQ: getAllTopicList)."""
        return _page((yield from self._sorted_names()), after, limit)

    def of_cluster_after(self, cluster_name: str, after: str, limit: int) -> Sliced[list[str]]:
        """Topics with queues on any broker group of a cluster (RocketMQ: getTopicsByCluster)."""
        if cluster_name not in self._tables.cluster_addr_table:
            return []
        find = self._tables.queue_datas.by_fragment
        return (
            yield from self._matching_after(
                lambda queues: any(find[queue].broker.cluster_name == cluster_name for queue in queues), after, limit
            )
        )

    def with_flags_after(self, present: int, absent: int, after: str, limit: int) -> Sliced[list[str]]:
        """Topics with some flag bits and without others (RocketMQ: getUnitTopics and the two after it).

        As there, the topic's first QueueData alone decides; here that is of the first group by cluster and name.
        """
        find = self._tables.queue_datas.by_fragment
        return (
            yield from self._matching_after(
                lambda queues: find[queues[0]].topic_sys_flag & (present | absent) == present, after, limit
            )
        )

    def system_after(self, after: str, limit: int) -> Sliced[list[str]]:
        """Names of clusters and broker groups, which are topics by convention (RocketMQ: getSystemTopicList)."""
        clusters = self._tables.cluster_addr_table
        names = set(clusters).union(*clusters.values())
        return _page((yield from sorted_in_slices(names)), after, limit)

    def broker_addr(self) -> str | None:
        """Address of some broker, which knows its own system topics: the lowest id of the group known longest."""
        table = self._tables.broker_addr_table
        first: BrokerKey | None = next(iter(table), None)
        if first is None:
            return None
        addrs = table[first].addrs
        return addrs[min(addrs)]

    def _sorted_names(self) -> Sliced[list[str]]:
        names = self._names
        if names is None:
            changes = self._changes
            unsorted = yield from self._tables.topic_queue_table.copy().names()
            names = yield from sorted_in_slices(unsorted)
            if changes == self._changes:
                self._names = names
        return names

    def _matching_after(self, matches: Callable[[TopicQueues], bool], after: str, limit: int) -> Sliced[list[str]]:
        names = yield from self._sorted_names()
        table = self._tables.topic_queue_table
        found: list[str] = []
        start = _start(names, after)
        for count in range(1, len(names) - start + 1):
            name = names[start + count - 1]
            queues = table.get(name)  # the topic may have gone while this gave way
            if queues is not None and matches(queues):
                found.append(name)
                if len(found) == limit:
                    break
            if count % FILTER_SLICE == 0:
                yield
        return found


def _start(names: list[str], after: str) -> int:
    return bisect.bisect_right(names, after) if after else 0


def _page(names: list[str], after: str, limit: int) -> list[str]:
    start = _start(names, after)
    return names[start : start + limit]
