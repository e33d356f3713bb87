"""The table of consumers and of what they read (RocketMQ: ConsumerManager, DefaultConsumerIdsChangeListener)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import ClientChannel
from broker_agent.clients.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.limits import SUBSCRIPTION_BYTES
from broker_agent.clients.producer_manager import ClientChannelInfo, GroupTable
from groundwork.shares import MACHINE, Sharer


@dataclass(slots=True)
class ConsumerGroupInfo:
    """Attributes and subscriptions of a group, as the heartbeats of its members leave them. The last one wins."""

    consume_type: pb.ConsumeType = pb.CONSUME_TYPE_UNSPECIFIED
    message_model: pb.MessageModel = pb.MESSAGE_MODEL_UNSPECIFIED
    consume_from_where: pb.ConsumeFromWhere = pb.CONSUME_FROM_WHERE_UNSPECIFIED
    subscriptions: dict[str, pb.SubscriptionData] = field(default_factory=dict)  # by topic
    sharer: Sharer = MACHINE  # the caller that sent the last heartbeat: the subscriptions take its share

    @property
    def size(self) -> int:
        """What the subscriptions take of the share, in bytes."""
        texts = sum(len(data.topic) + len(data.expression.encode()) for data in self.subscriptions.values())
        return texts + SUBSCRIPTION_BYTES * len(self.subscriptions)

    def after(self, data: pb.ConsumerData, sharer: Sharer) -> ConsumerGroupInfo:
        """Returns the group after a heartbeat. It has the heartbeat's topics, each in the newest version."""
        merged = {}
        for new in data.subscriptions:
            kept = self.subscriptions.get(new.topic)
            if kept is None or new.sub_version > kept.sub_version:
                kept = pb.SubscriptionData()
                kept.CopyFrom(new)  # a part of the request would keep the whole request in memory
                kept.expression_type = kept.expression_type or pb.EXPRESSION_TYPE_TAG
            merged[kept.topic] = kept
        return ConsumerGroupInfo(data.consume_type, data.message_model, data.consume_from_where, merged, sharer)


class ConsumerManager(GroupTable):
    """Consumer groups, their clients and what they read. Notifies members of changes and keeps their filters."""

    _kind = "consumer"

    def __init__(self, clock: Callable[[], float], filters: ConsumerFilterManager) -> None:
        super().__init__(clock)
        self._filters = filters
        self._infos: dict[str, ConsumerGroupInfo] = {}

    def group(self, name: str) -> ConsumerGroupInfo | None:
        return self._infos.get(name)

    def client_ids(self, group: str) -> list[str]:
        """Returns the ids of a group's clients, sorted. Each is there once, also while a client reconnects."""
        return sorted({info.client_id for info in self.members(group)})

    def check_can_register(self, channel: ClientChannel, consumers: Sequence[pb.ConsumerData], sharer: Sharer) -> None:
        """Checks that a client may join these groups with these subscriptions. Raises LIMIT_EXCEEDED."""
        growth = 0
        for data in consumers:
            info = self._infos.get(data.group_name) or ConsumerGroupInfo()
            growth += max(0, info.after(data, sharer).size - (info.size if info.sharer == sharer else 0))
        self.check_can_join(channel, [data.group_name for data in consumers], sharer, growth)

    def register_consumer(self, info: ClientChannelInfo, data: pb.ConsumerData) -> bool:
        """Adds a client that may join a group, or renews it there. The group takes the heartbeat's subscriptions.

        Returns whether a client id or a topic was added or removed. Then all members are notified. As in RocketMQ the
        channel is the client: another client id over it replaces the first one.
        """
        group = data.group_name
        before = self._infos.get(group) or ConsumerGroupInfo()
        after = self._infos[group] = before.after(data, info.sharer)
        known = self._members.get(group, {}).get(info.channel)
        if known is None:
            self._add(group, info)
        else:
            self._members[group][info.channel] = replace(info, sharer=known.sharer)
        self._shares.give_back(before.sharer, before.size)
        self._shares.take(after.sharer, after.size)
        joined = known is None or known.client_id != info.client_id
        changed = joined or before.subscriptions.keys() != after.subscriptions.keys()
        if changed:
            self._notify(group)
        self._filters.register(group, after.subscriptions)
        return changed

    def unregister_consumer(self, group: str, channel: ClientChannel) -> bool:
        return bool(self._remove([(group, channel)], "unregistered"))

    def _left(self, group: str) -> None:
        if group in self._members:
            self._notify(group)
        else:
            info = self._infos.pop(group)
            self._shares.give_back(info.sharer, info.size)
            self._filters.unregister(group)

    def _notify(self, group: str) -> None:
        """Notifies all members, unless they are broadcasting ones, which share no queues."""
        if self._infos[group].message_model != pb.MESSAGE_MODEL_BROADCASTING:
            for channel in self._members[group]:
                channel.notify_consumer_ids_changed(group)
