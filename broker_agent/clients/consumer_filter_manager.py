"""The filters by expression of consumer groups, and when each was in use (RocketMQ: ConsumerFilterManager)."""

from __future__ import annotations

from collections.abc import Mapping

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.limits import DEAD_FILTER_SECONDS, MAX_DEAD_FILTERS
from broker_agent.timing import Timing


class ConsumerFilterManager:
    """Keeps filters while their groups read the topics, and for a day after. Tags are no filters here."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._by_group: dict[str, dict[str, pb.ConsumerFilterData]] = {}  # and by topic
        self._died: dict[tuple[str, str], float] = {}  # group and topic to monotonic seconds, the longest dead first

    def register(self, group: str, subscriptions: Mapping[str, pb.SubscriptionData]) -> None:
        """Takes the filters among a group's subscriptions, which are by topic. All others of the group are dead then.

        The same or a newer version brings a dead filter back; an older one does not.
        """
        filters = self._by_group.setdefault(group, {})
        wanted = {
            topic: data
            for topic, data in subscriptions.items()
            if data.expression_type != pb.EXPRESSION_TYPE_TAG and data.expression
        }
        for topic, data in filters.items():
            if topic not in wanted and not data.HasField("dead_time_millis"):
                data.dead_time_millis = self._wall_millis()
                self._died[group, topic] = self._timing.clock()
        for topic, subscription in wanted.items():
            old = filters.get(topic)
            if old is None or subscription.sub_version >= old.client_version:
                self._died.pop((group, topic), None)
                filters[topic] = self._living(subscription, old)
        if not filters:
            del self._by_group[group]
        while len(self._died) > MAX_DEAD_FILTERS:
            self._drop_longest_dead()

    def unregister(self, group: str) -> None:
        self.register(group, {})

    def clean(self) -> None:
        """Drops filters that have been dead for a day."""
        oldest_kept = self._timing.clock() - DEAD_FILTER_SECONDS
        while self._died and next(iter(self._died.values())) <= oldest_kept:
            self._drop_longest_dead()

    def by_group(self, group: str) -> list[pb.ConsumerFilterData]:
        """Returns the filters of a group, dead ones included, sorted by topic."""
        return [data for _topic, data in sorted(self._by_group.get(group, {}).items())]

    def _living(self, new: pb.SubscriptionData, old: pb.ConsumerFilterData | None) -> pb.ConsumerFilterData:
        same = old is not None and (old.expression, old.expression_type) == (new.expression, new.expression_type)
        return pb.ConsumerFilterData(
            topic=new.topic,
            expression=new.expression,
            expression_type=new.expression_type,
            client_version=new.sub_version,
            born_time_millis=old.born_time_millis if old is not None and same else self._wall_millis(),
        )

    def _drop_longest_dead(self) -> None:
        group, topic = next(iter(self._died))
        del self._died[group, topic]
        del self._by_group[group][topic]
        if not self._by_group[group]:
            del self._by_group[group]

    def _wall_millis(self) -> int:
        return int(self._timing.wall_clock() * 1000)
