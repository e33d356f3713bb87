"""Lists of topic names: sorted, and only as much of them as a page needs (RocketMQ: TopicList)."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable

from namesrv.core.model import TopicQueues
from namesrv.core.pace import Sliced, paced, run_steps, sorted_in_slices
from namesrv.core.persistent_map import PersistentMap
from namesrv.core.tables import TableIndex, Tables

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
            for name in paced(itertools.islice(all_names, _start(all_names, last), None)):
                if matches(rows[name]):
                    found.append(name)
                    if len(found) == limit:
                        break
            return found

        return after


def _start(names: list[str], after: str) -> int:
    return bisect.bisect_right(names, after) if after else 0


def _page(names: list[str], after: str, limit: int) -> list[str]:
    start = _start(names, after)
    return names[start : start + limit]
