"""What watchers ask for, and who asked for a topic: an index, so that a change is passed over once for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from namesrv.core.steps import Steps

SUBSCRIBE_SLICE = 1_000
"""Names that are put into the index before giving way: about a millisecond."""

LOOK_SLICE = 2_000
"""Topics that are looked up in the index before giving way: about a millisecond."""

WatcherT = TypeVar("WatcherT")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that one watcher asks for."""

    topics: frozenset[str]
    """By name, whether they are there or not."""
    prefixes: tuple[str, ...] = ()
    """By the beginning of their name; the empty one is of all topics."""
    zone_name: str | None = None
    """Zone that the routes are for; None: all zones."""

    @property
    def name_count(self) -> int:
        """Names and prefixes: what it takes in the index."""
        return len(self.topics) + len(self.prefixes)

    def of_these(self, topics: Collection[str]) -> Steps[list[str]]:
        """Those of some topics that it asks for."""
        if not self.prefixes and len(self.topics) < len(topics):
            found = [topic for topic in self.topics if topic in topics]
            yield
            return found
        found = []
        for count, topic in enumerate(tuple(topics), 1):
            if topic in self.topics or topic.startswith(self.prefixes):
                found.append(topic)
            if count % LOOK_SLICE == 0:
                yield
        return found


class SubscriptionIndex(Generic[WatcherT]):
    """Who watches a topic, by its name and by the beginnings of it."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[WatcherT, None]] = {}
        self._by_prefix: dict[str, dict[WatcherT, None]] = {}
        self._lengths: tuple[int, ...] = ()
        """Lengths of the prefixes: a topic has at most one beginning of each."""

    def add(self, watcher: WatcherT, subscription: Subscription) -> Steps[None]:
        """Adds a watcher. Until the steps are at their end, it is told of some of its topics only."""
        for prefix in subscription.prefixes:
            self._by_prefix.setdefault(prefix, {})[watcher] = None
        self._lengths = tuple({len(prefix) for prefix in self._by_prefix})
        by_topic = self._by_topic
        for count, topic in enumerate(subscription.topics, 1):
            by_topic.setdefault(topic, {})[watcher] = None
            if count % SUBSCRIBE_SLICE == 0:
                yield

    def remove(self, watcher: WatcherT, subscription: Subscription) -> None:
        """Removes a watcher, also one that was added in part."""
        for table, names in ((self._by_topic, subscription.topics), (self._by_prefix, subscription.prefixes)):
            for name in names:
                watchers = table.get(name)
                if watchers is not None:
                    watchers.pop(watcher, None)
                    if not watchers:
                        del table[name]
        self._lengths = tuple({len(prefix) for prefix in self._by_prefix})

    def watched(self, topics: Collection[str]) -> Iterator[str | None]:
        """Those of some topics that anybody watches. None stands for a pause."""
        by_topic, by_prefix, lengths = self._by_topic, self._by_prefix, self._lengths
        if not lengths and len(by_topic) < len(topics):
            names: Collection[str] = tuple(by_topic)
            for count, topic in enumerate(names, 1):
                if topic in topics:
                    yield topic
                if count % LOOK_SLICE == 0:
                    yield None
            return
        for count, topic in enumerate(tuple(topics), 1):
            if topic in by_topic or any(topic[:length] in by_prefix for length in lengths):
                yield topic
            if count % LOOK_SLICE == 0:
                yield None

    def watchers_of(self, topic: str) -> tuple[WatcherT, ...]:
        """Everybody who watches a topic; whoever does so by several names is there several times."""
        found = tuple(self._by_topic.get(topic, ()))
        for length in self._lengths:
            found += tuple(self._by_prefix.get(topic[:length], ()))
        return found
