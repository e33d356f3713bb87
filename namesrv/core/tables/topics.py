"""The topic table, which takes a large change in one step and merges it afterwards in slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from namesrv.core.records.rows import TopicQueues
from namesrv.core.slices import Sliced

MERGE_SLICE = 500
"""Rows that are merged before giving way: a quarter of a millisecond, most of it freeing the rows that are replaced."""

_NOT_CHANGED: TopicQueues = ()


class TopicTable:
    """Topic name to queues (RocketMQ: topicQueueTable).

    Lookups read a change before the rows that it has not been merged into yet, so publishing costs the same whatever
    its size. Only one change is unmerged at a time: ``settle`` before the next one.
    """

    def __init__(self) -> None:
        self._rows: dict[str, TopicQueues] = {}
        self._unmerged: dict[str, TopicQueues | None] = {}
        """The last change, or what is left of it; None: the topic is gone."""
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, topic: object) -> bool:
        if not self._unmerged:
            return topic in self._rows  # quicker, and every topic of a registration is looked up
        return self.get(topic) is not None  # type: ignore[arg-type]  # nothing else is in here

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __getitem__(self, topic: str) -> TopicQueues:
        queues = self.get(topic)
        if queues is None:
            raise KeyError(topic)
        return queues

    def get(self, topic: str) -> TopicQueues | None:
        """A topic's queues; None if it is not there."""
        if self._unmerged:
            queues = self._unmerged.get(topic, _NOT_CHANGED)
            if queues is not _NOT_CHANGED:
                return queues
        return self._rows.get(topic)

    def settled_rows(self) -> Mapping[str, TopicQueues]:
        """The rows themselves, to look many up without calls; the table must be settled and stay so."""
        assert not self._unmerged, "rows are missing that are not merged yet"
        return self._rows

    def copy(self) -> Mapping[str, TopicQueues]:
        """All rows as they are now."""
        if not self._unmerged:
            return self._rows.copy()
        rows: dict[str, TopicQueues | None] = {**self._rows, **self._unmerged}
        for topic in [topic for topic, queues in self._unmerged.items() if queues is None]:
            del rows[topic]
        return rows  # type: ignore[return-value]  # none of them is None any more

    def publish(self, changed: dict[str, TopicQueues | None], came: int, went: int) -> None:
        """Makes a change show, in one step.

        Args:
            changed: Topics that come, change or (None) go. The table takes it over.
            came: How many of them come.
            went: How many of them go.
        """
        assert not self._unmerged, "a change is published before the one before it is merged"
        self._unmerged = changed
        self._len += came - went

    def settle(self) -> Sliced[None]:
        """Merges what is unmerged. If it is not driven to its end, the next one goes on from there.

        It gives way before the first slice, too: that comes after a publication, which is the longest step of a change.
        """
        unmerged, rows = self._unmerged, self._rows
        if len(unmerged) > MERGE_SLICE:
            yield
        count = 0
        while unmerged:
            topic, queues = unmerged.popitem()
            if queues is None:
                rows.pop(topic, None)
            else:
                rows[topic] = queues
            count += 1
            if count % MERGE_SLICE == 0:
                yield
