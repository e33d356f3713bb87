"""The filters by expression of consumer groups, and when each was in use (RocketMQ: ConsumerFilterManager)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker_agent.clients.limits import DEAD_FILTER_SECONDS, MAX_DEAD_FILTERS
from broker_agent.clients.records import ExpressionType, SubscriptionData
from broker_agent.timing import Timing


@dataclass(frozen=True, slots=True)
class ConsumerFilterData:
    """The filter of one group on one topic. Times are in milliseconds since the Unix epoch."""

    group: str
    topic: str
    expression: str
    expression_type: ExpressionType
    client_version: int
    """The sub_version that it came with: only a higher one replaces it."""
    born_time_millis: int
    """When this expression came into use."""
    dead_time_millis: int | None = None
    """When it went out of use; None while it is in use."""


class ConsumerFilterManager:
    """Keeps filters while their groups read the topics, and for a day after. Tags are no filters here. Thread-safe."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        self._by_group: dict[str, dict[str, ConsumerFilterData]] = {}
        self._died: dict[tuple[str, str], float] = {}
        """Group and topic of the dead to when that was (monotonic seconds), the longest dead first."""

    def register(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        """Takes the filters of a heartbeat. Filters on topics that the group reads no more, or by tags, are dead then.

        A filter is replaced by one with a higher version only; the same version again brings a dead one back.
        """
        filtered = {
            subscription.topic: subscription
            for subscription in subscriptions
            if subscription.expression_type is not ExpressionType.TAG and subscription.expression
        }
        with self._lock:
            for topic, data in list(self._by_group.get(group, {}).items()):
                if topic not in filtered:
                    self._die(data)
            for subscription in filtered.values():
                self._register(group, subscription)

    def unregister(self, group: str) -> None:
        """All filters of a group are dead from now on."""
        self.register(group, ())

    def clean(self) -> None:
        """Drops filters that have been dead for a day."""
        with self._lock:
            oldest_kept = self._timing.clock() - DEAD_FILTER_SECONDS
            while self._died and next(iter(self._died.values())) <= oldest_kept:
                self._drop_longest_dead()

    def by_group(self, group: str) -> tuple[ConsumerFilterData, ...]:
        """The filters of a group, dead ones included, sorted by topic."""
        with self._lock:
            filters = self._by_group.get(group, {})
            return tuple(filters[topic] for topic in sorted(filters))

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        old = self._by_group.get(group, {}).get(subscription.topic)
        if old is not None and subscription.sub_version < old.client_version:
            return
        same = old is not None and (old.expression, old.expression_type) == (
            subscription.expression,
            subscription.expression_type,
        )
        if old is not None and (same or subscription.sub_version == old.client_version):
            new = replace(old, client_version=subscription.sub_version, dead_time_millis=None)
        else:
            new = ConsumerFilterData(
                group,
                subscription.topic,
                subscription.expression,
                subscription.expression_type,
                subscription.sub_version,
                self._wall_millis(),
            )
        self._died.pop((group, subscription.topic), None)
        self._by_group.setdefault(group, {})[subscription.topic] = new

    def _die(self, data: ConsumerFilterData) -> None:
        if data.dead_time_millis is not None:
            return
        self._by_group[data.group][data.topic] = replace(data, dead_time_millis=self._wall_millis())
        self._died[data.group, data.topic] = self._timing.clock()
        if len(self._died) > MAX_DEAD_FILTERS:
            self._drop_longest_dead()

    def _drop_longest_dead(self) -> None:
        group, topic = next(iter(self._died))
        del self._died[group, topic]
        filters = self._by_group[group]
        del filters[topic]
        if not filters:
            del self._by_group[group]

    def _wall_millis(self) -> int:
        return int(self._timing.wall_clock() * 1000)
