"""The topic table, which takes a large change in one step and merges it afterwards in slices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from namesrv.core.records.rows import TopicQueues
from namesrv.core.slices import Sliced, emptied

MERGE_SLICE = 300
"""Rows that are merged before giving way: a sixth of a millisecond, most of it freeing the rows that are replaced."""

SHARDS = 1_024
"""Dictionaries that the rows are spread over: at a million topics one of them is copied, or grows, in 50 µs."""

SHARD_MASK = SHARDS - 1
"""The bits of a name's hash that tell its shard."""

COPIED_ROWS_OF_A_MERGED_ONE = 8
"""Rows of a shard that are copied in the time in which one is merged."""

_NOT_CHANGED: TopicQueues = ()

Shards = Sequence[Mapping[str, TopicQueues]]


class TopicView(Mapping[str, TopicQueues]):
    """The rows as they were at one moment. Nothing was copied for it but what was not merged then."""

    __slots__ = ("_len", "_shards", "_unmerged")

    def __init__(
        self, shards: list[dict[str, TopicQueues]], unmerged: dict[str, TopicQueues | None], length: int
    ) -> None:
        self._shards = shards
        self._unmerged = unmerged
        self._len = length

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, topic: str) -> TopicQueues:
        queues = self._unmerged.get(topic, _NOT_CHANGED)
        if queues is _NOT_CHANGED:
            return self._shards[hash(topic) & SHARD_MASK][topic]
        if queues is None:
            raise KeyError(topic)
        return queues

    def __iter__(self) -> Iterator[str]:
        return (topic for topic, _ in self.rows())

    def rows(self) -> Iterator[tuple[str, TopicQueues]]:
        """All of them."""
        settled = itertools.chain.from_iterable(shard.items() for shard in self._shards)
        unmerged = self._unmerged
        if not unmerged:
            return settled
        later = ((topic, queues) for topic, queues in unmerged.items() if queues is not None)
        return itertools.chain((row for row in settled if row[0] not in unmerged), later)

    def names(self) -> Sliced[list[str]]:
        """All names, in slices."""
        names: list[str] = []
        given_way_at = 0
        for shard in self._shards:
            names += [name for name in shard if name not in self._unmerged] if self._unmerged else shard
            if len(names) - given_way_at >= MERGE_SLICE:
                given_way_at = len(names)
                yield
        names += [name for name, queues in self._unmerged.items() if queues is not None]
        return names

    def let_go(self) -> Sliced[None]:
        """Frees in slices what nobody else holds. The view is of no use afterwards."""
        rows = 0
        while self._shards:
            rows += len(self._shards.pop())
            if rows >= MERGE_SLICE:
                rows = 0
                yield
        yield from emptied(self._unmerged)


NO_TOPICS = TopicView([], {}, 0)
"""Of who does not ask for topics."""


class TopicTable:
    """Topic name to queues (RocketMQ: topicQueueTable).

    Lookups read a change before the rows that it has not been merged into yet, so publishing costs the same whatever
    its size. Only one change is unmerged at a time: ``settle`` before the next one.

    The rows are spread over shards. A copy shares all of them with the table, which copies a shard before it changes
    it. So neither a copy nor growth is a long step, however many rows there are.
    """

    def __init__(self) -> None:
        self._shards: list[dict[str, TopicQueues]] = [{} for _ in range(SHARDS)]
        self._is_shared = bytearray(SHARDS)
        """1 for each shard that a copy may have, too."""
        self._unmerged: dict[str, TopicQueues | None] = {}
        """The last change, or what is left of it; None: the topic is gone."""
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, topic: object) -> bool:
        if not self._unmerged:
            return topic in self._shards[hash(topic) & SHARD_MASK]  # quicker: a registration looks all its topics up
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
        return self._shards[hash(topic) & SHARD_MASK].get(topic)

    def settled_shards(self) -> Shards:
        """The rows themselves, to look many up without calls; the table must be settled and stay so."""
        assert not self._unmerged, "rows are missing that are not merged yet"
        return self._shards

    def copy(self) -> TopicView:
        """All rows as they are now."""
        self._is_shared[:] = b"\1" * SHARDS
        return TopicView(self._shards.copy(), self._unmerged.copy(), self._len)

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
        unmerged, shards, is_shared = self._unmerged, self._shards, self._is_shared
        if len(unmerged) > MERGE_SLICE:
            yield
        count = 0
        while unmerged:
            topic, queues = unmerged.popitem()
            number = hash(topic) & SHARD_MASK
            if is_shared[number]:
                shards[number] = shards[number].copy()
                is_shared[number] = 0
                count += len(shards[number]) // COPIED_ROWS_OF_A_MERGED_ONE
            if queues is None:
                shards[number].pop(topic, None)
            else:
                shards[number][topic] = queues
            count += 1
            if count >= MERGE_SLICE:
                count = 0
                yield
