"""The table of consumers (RocketMQ: ConsumerManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import structlog

from broker_agent.clients.groups.consumer_group_info import ConsumerGroupInfo
from broker_agent.clients.groups.group_members import GroupMembers
from broker_agent.clients.limits import CLIENT_SILENCE_SECONDS, MAX_SUBSCRIPTION_CHARACTERS
from broker_agent.clients.records import (
    ClientChannel,
    ClientChannelInfo,
    ConsumerAttributes,
    ConsumerData,
    MessageModel,
    SubscriptionData,
)
from broker_agent.rpc_errors import LimitExceeded

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ConsumerIdsChangeListener(Protocol):
    """Is told what happens to consumer groups (RocketMQ: ConsumerIdsChangeListener).

    Calls come in the order of the events. They must return quickly and call nothing of the manager's: its table is
    locked.
    """

    def on_register(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        """A heartbeat named the group (REGISTER)."""

    def on_change(self, group: str, channels: Sequence[ClientChannel]) -> None:
        """Members or subscriptions changed; the channels are those of the members now (CHANGE)."""

    def on_unregister(self, group: str) -> None:
        """The last member has left (UNREGISTER)."""

    def on_client_register(self, group: str, info: ClientChannelInfo) -> None:
        """A client has joined (CLIENT_REGISTER)."""

    def on_client_unregister(self, group: str, info: ClientChannelInfo) -> None:
        """A client has left (CLIENT_UNREGISTER)."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group at one moment."""

    attributes: ConsumerAttributes
    subscriptions: tuple[SubscriptionData, ...]
    """Sorted by topic."""
    members: tuple[ClientChannelInfo, ...]
    """In the order in which they joined."""

    @property
    def client_ids(self) -> list[str]:
        """Sorted; each once, where RocketMQ names a reconnecting client twice and one share of queues is lost."""
        return sorted({info.client_id for info in self.members})


class ConsumerManager:
    """Consumer groups, their clients and what they read. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float], lock: AbstractContextManager[object], listener: ConsumerIdsChangeListener
    ) -> None:
        """Makes an empty table.

        Args:
            clock: Monotonic seconds.
            lock: Reentrant; guards the table, and may be shared with other tables.
            listener: Who is told of changes.
        """
        self._clock = clock
        self._lock = lock
        self._listener = listener
        self._members = GroupMembers("consumer")
        self._infos: dict[str, ConsumerGroupInfo] = {}
        self._characters = 0

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups."""
        with self._lock:
            return tuple(self._infos)

    @property
    def membership_count(self) -> int:
        """Pairs of group and client. Takes no lock."""
        return self._members.size

    def check_room(self, channel: ClientChannel, consumers: Sequence[ConsumerData]) -> None:
        """Checks that a client may join these groups with these subscriptions. Raises LimitExceeded."""
        with self._lock:
            self._members.check_room(channel, [data.group for data in consumers])
            characters = self._characters
            for data in consumers:
                info = self._infos.get(data.group)
                characters += sum(subscription.characters for subscription in data.subscriptions)
                characters -= info.characters if info else 0
            if characters > max(MAX_SUBSCRIPTION_CHARACTERS, self._characters):
                raise LimitExceeded("characters of all subscriptions", characters, MAX_SUBSCRIPTION_CHARACTERS)

    def register_consumer(self, info: ClientChannelInfo, data: ConsumerData) -> bool:
        """Adds a client to a group, or renews it there, and takes the group's attributes and subscriptions from it.

        As in RocketMQ the channel is the client: another client id over it takes the first one's place. Here that
        counts as a change, because the others must share the queues out for another id.

        Returns:
            Whether members or subscriptions changed. Then the members are told, this one included.
        """
        group = data.group
        with self._lock:
            group_info = self._infos.get(group)
            if group_info is None:
                group_info = self._infos[group] = ConsumerGroupInfo(group, data.attributes)
            joined = self._put(group, info, group_info)
            group_info.update_attributes(data.attributes)
            characters = group_info.characters
            resubscribed = group_info.update_subscriptions(data.subscriptions)
            self._characters += group_info.characters - characters
            if joined or resubscribed:
                self._tell_change(group, data.attributes)
            self._listener.on_register(group, data.subscriptions)
            return joined or resubscribed

    def unregister_consumer(self, group: str, channel: ClientChannel) -> bool:
        """Takes a client out of a group; the others are told. Returns whether it was in it."""
        with self._lock:
            return bool(self._remove([(group, channel)], "unregistered"))

    def do_channel_close_event(self, channel: ClientChannel) -> tuple[str, ...]:
        """Takes a client out of every group; the others are told. Returns the groups that it was in."""
        with self._lock:
            groups = self._members.groups_of(channel)
            self._remove([(group, channel) for group in groups], "channel_closed")
            return groups

    def scan_not_active_channel(self) -> int:
        """Takes out who has been silent for too long; the others are told, which RocketMQ forgets.

        Returns:
            How many memberships ended.
        """
        with self._lock:
            silent = self._members.heard_before(self._clock() - CLIENT_SILENCE_SECONDS)
            return self._remove(silent, "silent")

    def group(self, name: str) -> ConsumerGroup | None:
        """A group as it is now; None if nobody is in it."""
        with self._lock:
            info = self._infos.get(name)
            if info is None:
                return None
            return ConsumerGroup(info.attributes, info.subscriptions, tuple(self._members.of(name).values()))

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """How a group reads a topic (RocketMQ: findSubscriptionData); None if it does not."""
        with self._lock:
            info = self._infos.get(group)
            return info.subscription(topic) if info else None

    def query_topic_consume_by_who(self, topic: str) -> list[str]:
        """The groups that read a topic, sorted."""
        with self._lock:
            return sorted(group for group, info in self._infos.items() if info.subscription(topic) is not None)

    def _put(self, group: str, info: ClientChannelInfo, group_info: ConsumerGroupInfo) -> bool:
        """Adds or renews a member. Returns whether the ids of the group's clients may have changed."""
        known = self._members.of(group).get(info.channel)
        self._members.put(group, info)
        if known is None:
            _log.debug("consumer_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)
            self._listener.on_client_register(group, info)
            return True
        if known.client_id == info.client_id:
            return False
        group_info.warn_once("two_client_ids_over_one_channel", before=known.client_id, now=info.client_id)
        return True

    def _remove(self, memberships: Iterable[tuple[str, ClientChannel]], why: str) -> int:
        """Takes clients out of groups, then tells each of these groups once. Returns how many memberships ended."""
        left: dict[str, int] = {}
        for group, channel in memberships:
            member = self._members.remove(group, channel)
            if member is not None:
                left[group] = left.get(group, 0) + 1
                _log.debug("consumer_left", group=group, client_id=member.client_id, why=why)
                self._listener.on_client_unregister(group, member)
        for group in left:
            if group in self._members.groups:
                self._tell_change(group, self._infos[group].attributes)
            else:
                self._characters -= self._infos.pop(group).characters
                self._listener.on_unregister(group)
        return sum(left.values())

    def _tell_change(self, group: str, attributes: ConsumerAttributes) -> None:
        """Tells the members of a group that shares queues out; the members of a broadcasting one have nothing to do."""
        if attributes.message_model is not MessageModel.BROADCASTING:
            self._listener.on_change(group, tuple(self._members.of(group)))
