"""Reactions to events of consumer groups (RocketMQ: DefaultConsumerIdsChangeListener, Broker2Client)."""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent.clients.groups.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.records import ClientChannel, ClientChannelInfo, SubscriptionData


class DefaultConsumerIdsChangeListener:
    """Tells the members of a group that it changed, and keeps the filters of groups."""

    def __init__(self, filters: ConsumerFilterManager, *, notify_consumer_ids_changed_enable: bool) -> None:
        self._filters = filters
        self.notify_consumer_ids_changed_enable = notify_consumer_ids_changed_enable
        """Whether members are told; may be changed at any time."""

    def on_register(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        """Takes the filters of the heartbeat."""
        self._filters.register(group, subscriptions)

    def on_change(self, group: str, channels: Sequence[ClientChannel]) -> None:
        """Tells every member, best effort: nobody answers, and nothing is repeated."""
        if self.notify_consumer_ids_changed_enable:
            for channel in channels:
                channel.notify_consumer_ids_changed(group)

    def on_unregister(self, group: str) -> None:
        """The group's filters are out of use."""
        self._filters.unregister(group)

    def on_client_register(self, group: str, info: ClientChannelInfo) -> None:
        """Nothing follows from one client."""

    def on_client_unregister(self, group: str, info: ClientChannelInfo) -> None:
        """Nothing follows from one client."""
