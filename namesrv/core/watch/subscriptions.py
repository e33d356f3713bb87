"""Subscriptions of watchers, and an index of them, so that each change is read once for all watchers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from namesrv.core.slices import Sliced
from namesrv.core.watch.watched_names import WatchedNames

SUBSCRIBE_SLICE = 1_000
"""Names that are put into the index before giving way: about a millisecond."""

LOOK_SLICE = 2_000
"""Topics that are looked up in the index before giving way: about a millisecond."""

WatcherT = TypeVar("WatcherT")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that one watcher asks for."""

    topics: frozenset[str]
    """Topics by name, whether they are there or not."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names; the empty one is of all topics."""
    zone_name: str | None = None
    """Zone that the routes are for; None: all zones."""

    @property
    def name_count(self) -> int:
        """Names and prefixes: what it takes in the index."""
        return len(self.topics) + len(self.prefixes)

    def of_these(self, topics: Collection[str]) -> Iterator[str | None]:
        """The topics among some that it asks for. None stands for a pause."""
        by_name = not self.prefixes and len(self.topics) < len(topics)
        for count, topic in enumerate(self.topics if by_name else tuple(topics), 1):
            if topic in topics if by_name else topic in self.topics or topic.startswith(self.prefixes):
                yield topic
            if count % LOOK_SLICE == 0:
                yield None


class SubscriptionIndex(Generic[WatcherT]):
    """An index of watchers by names of topics and by prefixes."""

    def __init__(self) -> None:
        self._by_topic: WatchedNames[WatcherT] = WatchedNames()
        self._by_prefix: dict[str, dict[WatcherT, None]] = {}
        self._with_length: Counter[int] = Counter()
        """How many prefixes have each length."""
        self._lengths: tuple[int, ...] = ()
        """Lengths of the prefixes: a topic has at most one prefix of each length."""

    def add(self, watcher: WatcherT, subscription: Subscription) -> Sliced[None]:
        """Adds a watcher. Until the steps are at their end, it is told of some of its topics only."""
        for prefix in subscription.prefixes:
            if prefix not in self._by_prefix:
                self._by_prefix[prefix] = {}
                self._count_length(prefix, 1)
            self._by_prefix[prefix][watcher] = None
        for count, topic in enumerate(subscription.topics, 1):
            self._by_topic.add(topic, watcher)
            if count % SUBSCRIBE_SLICE == 0:
                yield

    def remove(self, watcher: WatcherT, subscription: Subscription) -> Sliced[None]:
        """Removes a watcher in steps, also one that was added in part. Until their end it is still found."""
        for prefix in subscription.prefixes:
            if _without(self._by_prefix, prefix, watcher):
                self._count_length(prefix, -1)
        for count, topic in enumerate(subscription.topics, 1):
            self._by_topic.remove(topic, watcher)
            if count % SUBSCRIBE_SLICE == 0:
                yield

    def _count_length(self, prefix: str, change: int) -> None:
        self._with_length[len(prefix)] += change
        self._lengths = tuple(length for length, count in self._with_length.items() if count)

    def named(self, topics: Collection[str]) -> Iterator[str | None]:
        """The topics among some that a watcher asks for by name. None stands for a pause."""
        watched = self._by_topic
        by_name = len(watched) < len(topics)
        for count, topic in enumerate(watched.names() if by_name else tuple(topics), 1):
            if topic in (topics if by_name else watched):
                yield topic
            if count % LOOK_SLICE == 0:
                yield None

    def begun(self, topics: Collection[str]) -> Iterator[tuple[str, str] | None]:
        """The topics among some that a watcher asks for by a prefix, each with the prefix.

        None stands for a pause. A topic comes once for each of its watched prefixes.
        """
        by_prefix = self._by_prefix
        if not by_prefix:
            return
        for count, topic in enumerate(tuple(topics), 1):
            for length in self._lengths:
                prefix = topic[:length]
                if prefix in by_prefix and len(prefix) == length:
                    yield prefix, topic
            if count % LOOK_SLICE == 0:
                yield None

    def watchers_of_topic(self, topic: str) -> tuple[WatcherT, ...]:
        """All watchers of a topic by its name."""
        return self._by_topic.watchers(topic)

    def watchers_of_prefix(self, prefix: str) -> tuple[WatcherT, ...]:
        """All watchers of this prefix."""
        return tuple(self._by_prefix.get(prefix, ()))


def _without(table: dict[str, dict[WatcherT, None]], name: str, watcher: WatcherT) -> bool:
    """Takes a watcher from a name. Whether that was the last one."""
    watchers = table.get(name, {})
    watchers.pop(watcher, None)
    if watchers or name not in table:
        return False
    del table[name]
    return True
