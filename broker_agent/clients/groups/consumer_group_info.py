"""The subscriptions of a consumer group, and its way to consume (RocketMQ: ConsumerGroupInfo)."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from broker_agent.clients.records import ConsumerAttributes, SubscriptionData

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ConsumerGroupInfo:
    """Attributes and subscriptions of a group, as its members' heartbeats leave them. Not thread-safe."""

    def __init__(self, group: str, attributes: ConsumerAttributes) -> None:
        self._group = group
        self.attributes = attributes
        """Those of the last heartbeat."""
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._warned: set[str] = set()
        self.characters = 0
        """What the subscriptions count for MAX_SUBSCRIPTION_CHARACTERS."""

    @property
    def subscriptions(self) -> tuple[SubscriptionData, ...]:
        """What the group reads, sorted by topic."""
        return tuple(self._subscriptions[topic] for topic in sorted(self._subscriptions))

    def subscription(self, topic: str) -> SubscriptionData | None:
        """How the group reads a topic; None if it does not."""
        return self._subscriptions.get(topic)

    def update_attributes(self, attributes: ConsumerAttributes) -> None:
        """Takes the attributes of a heartbeat: the last one wins."""
        if attributes != self.attributes:
            self.warn_once("consumer_group_attributes_differ", before=str(self.attributes), now=str(attributes))
        self.attributes = attributes

    def warn_once(self, event: str, **details: str) -> None:
        """Logs what is wrong with the group, once in its life: it would come with every heartbeat."""
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, group=self._group, **details)

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Takes the subscriptions of a heartbeat: new topics come, those that are missing go.

        Returns:
            Whether a topic came or went. A newer version of a known subscription replaces it without counting as a
            change; an older one is passed over.
        """
        offered = {subscription.topic: subscription for subscription in subscriptions}
        came = offered.keys() - self._subscriptions.keys()
        gone = self._subscriptions.keys() - offered.keys()
        for topic in gone:
            self.characters -= self._subscriptions.pop(topic).characters
        for topic, new in offered.items():
            old = self._subscriptions.get(topic)
            if old is not None and new.sub_version <= old.sub_version:
                continue
            self.characters += new.characters - (old.characters if old is not None else 0)
            self._subscriptions[topic] = new
        if came or gone:
            _log.debug("subscriptions_changed", group=self._group, came=sorted(came), gone=sorted(gone))
        return bool(came or gone)
