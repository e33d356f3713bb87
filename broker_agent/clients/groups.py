"""Groups of clients: producers, consumers and their subscriptions, under one lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from broker_agent.clients.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.limits import (
    CLIENT_SILENCE_SECONDS,
    MAX_CLIENTS_PER_GROUP,
    MAX_GROUP_SUBSCRIPTION_BYTES,
    MAX_GROUPS,
    MAX_GROUPS_PER_CLIENT,
    MAX_MEMBERSHIPS,
    MAX_SUBSCRIPTION_BYTES,
)
from broker_agent.clients.records import (
    ClientChannel,
    ClientChannelInfo,
    ConsumerAttributes,
    ConsumerData,
    MessageModel,
    SubscriptionData,
)
from broker_agent.errors import limit_exceeded
from groundwork.shares import Sharer, ShareRules, Shares

# Members of groups: the table behind the managers of producers and consumers.

_NOBODY: Mapping[ClientChannel, ClientChannelInfo] = MappingProxyType({})


class GroupMembers:
    """Group to channel to client, and channel to groups, so that the end of a channel need not look at every group.

    A group without members does not exist. Not thread-safe: its owner has the lock.
    """

    def __init__(self, kind: str) -> None:
        """Makes an empty table. ``kind`` is ``producer`` or ``consumer``, for errors."""
        self._kind = kind
        self._groups: dict[str, dict[ClientChannel, ClientChannelInfo]] = {}
        self._groups_of: dict[ClientChannel, set[str]] = {}
        rules = ShareRules(kept_percent=0)
        self._group_shares = Shares(f"{kind} groups", MAX_GROUPS, rules)
        self._founders: dict[str, Sharer] = {}
        """The callers whose shares the groups take: those of their first members."""
        self._shares = Shares(f"{kind}s of all groups", MAX_MEMBERSHIPS, rules)

    @property
    def groups(self) -> Collection[str]:
        return self._groups.keys()

    @property
    def size(self) -> int:
        """Pairs of group and client."""
        return self._shares.used

    def of(self, group: str) -> Mapping[ClientChannel, ClientChannelInfo]:
        """The members of a group in the order in which they joined; empty if there is no such group."""
        return self._groups.get(group, _NOBODY)

    def groups_of(self, channel: ClientChannel) -> tuple[str, ...]:
        return tuple(self._groups_of.get(channel, ()))

    def put(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client to a group, or replaces what is known of it there."""
        members = self._groups.setdefault(group, {})
        if (known := members.get(info.channel)) is not None:
            members[info.channel] = replace(info, sharer=known.sharer)
            return
        if not members:
            self._group_shares.take(info.sharer)
            self._founders[group] = info.sharer
        self._shares.take(info.sharer)
        members[info.channel] = info
        self._groups_of.setdefault(info.channel, set()).add(group)

    def remove(self, group: str, channel: ClientChannel) -> ClientChannelInfo | None:
        """Takes a client out of a group; None if it is not in it. The last one takes the group with it."""
        members = self._groups.get(group)
        if members is None or (info := members.pop(channel, None)) is None:
            return None
        self._shares.give_back(info.sharer)
        if not members:
            del self._groups[group]
            self._group_shares.give_back(self._founders.pop(group))
        groups = self._groups_of[channel]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel]
        return info

    def heard_before(self, moment: float) -> list[tuple[str, ClientChannel]]:
        """The clients last heard before a moment (monotonic seconds), with their groups."""
        return [
            (group, channel)
            for group, members in self._groups.items()
            for channel, info in members.items()
            if info.last_update < moment
        ]

    def check_room(self, channel: ClientChannel, groups: Iterable[str], sharer: Sharer) -> None:
        """Checks that a client may join all of these groups, and its caller hold that much. Raises LIMIT_EXCEEDED."""
        joined = [group for group in groups if channel not in self.of(group)]
        if not joined:
            return
        new_groups = sum(group not in self._groups for group in joined)
        with self._group_shares.holding(sharer, new_groups), self._shares.holding(sharer, len(joined)):
            pass
        largest = 1 + max(len(self.of(group)) for group in joined)
        self._check(f"clients of one {self._kind} group", largest, MAX_CLIENTS_PER_GROUP)
        of_client = len(self._groups_of.get(channel, ())) + len(joined)
        self._check(f"{self._kind} groups of one client", of_client, MAX_GROUPS_PER_CLIENT)

    def _check(self, what: str, value: int, limit: int) -> None:
        if value > limit:
            raise limit_exceeded(what, value, limit)


# The table of producers (RocketMQ: ProducerManager).

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ProducerManager:
    """Producer groups and their clients. Thread-safe."""

    def __init__(self, clock: Callable[[], float], lock: AbstractContextManager[object]) -> None:
        """Makes an empty table. The reentrant lock guards it, and may be shared with other tables."""
        self._clock = clock
        self._lock = lock
        self._members = GroupMembers("producer")

    @property
    def groups(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._members.groups)

    @property
    def membership_count(self) -> int:
        """Pairs of group and client. Takes no lock."""
        return self._members.size

    def check_room(self, channel: ClientChannel, groups: Iterable[str], sharer: Sharer) -> None:
        """Checks that a client may join these groups. Raises LIMIT_EXCEEDED."""
        with self._lock:
            self._members.check_room(channel, groups, sharer)

    def register_producer(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client to a group, or renews it there.

        As in RocketMQ the channel is the client: of a known one only the time is taken, not another client id.
        """
        with self._lock:
            known = self._members.of(group).get(info.channel)
            if known is not None:
                self._members.put(group, replace(known, last_update=info.last_update, remote_addr=info.remote_addr))
                return
            self._members.put(group, info)
        _log.debug("producer_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)

    def unregister_producer(self, group: str, channel: ClientChannel) -> bool:
        """Takes a client out of a group. Returns whether it was in it."""
        with self._lock:
            return self._remove(group, channel, "unregistered")

    def do_channel_close_event(self, channel: ClientChannel) -> tuple[str, ...]:
        """Takes a client out of every group. Returns those that it was in."""
        with self._lock:
            groups = self._members.groups_of(channel)
            for group in groups:
                self._remove(group, channel, "channel_closed")
            return groups

    def scan_not_active_channel(self) -> int:
        """Takes out who has been silent for too long. Returns how many memberships ended."""
        with self._lock:
            silent = self._members.heard_before(self._clock() - CLIENT_SILENCE_SECONDS)
            for group, channel in silent:
                self._remove(group, channel, "silent")
            return len(silent)

    def members(self, group: str) -> tuple[ClientChannelInfo, ...]:
        """The clients of a group, in the order in which they joined."""
        with self._lock:
            return tuple(self._members.of(group).values())

    def _remove(self, group: str, channel: ClientChannel, why: str) -> bool:
        info = self._members.remove(group, channel)
        if info is None:
            return False
        _log.debug("producer_left", group=group, client_id=info.client_id, why=why)
        return True


# The subscriptions of a consumer group, and its way to consume (RocketMQ: ConsumerGroupInfo).


class ConsumerGroupInfo:
    """Attributes and subscriptions of a group, as its members' heartbeats leave them. Not thread-safe."""

    def __init__(self, group: str, attributes: ConsumerAttributes) -> None:
        self._group = group
        self.attributes = attributes
        """Those of the last heartbeat."""
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._warned: set[str] = set()
        self.subscribed_bytes = 0
        """Bytes of the subscriptions."""

    @property
    def subscriptions(self) -> tuple[SubscriptionData, ...]:
        """What the group reads, sorted by topic."""
        return tuple(self._subscriptions[topic] for topic in sorted(self._subscriptions))

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

    def merged(self, offered: Iterable[SubscriptionData]) -> list[SubscriptionData]:
        """What the group would read after a heartbeat: of each topic that it names, the newest subscription."""
        known = self._subscriptions
        return [
            old if (old := known.get(new.topic)) is not None and new.sub_version <= old.sub_version else new
            for new in offered
        ]

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Takes the subscriptions of a heartbeat: new topics come, those that are missing go.

        Returns:
            Whether a topic came or went. A newer version of a known subscription replaces it without counting as a
            change; an older one is passed over.
        """
        merged = {subscription.topic: subscription for subscription in self.merged(subscriptions)}
        came = merged.keys() - self._subscriptions.keys()
        gone = self._subscriptions.keys() - merged.keys()
        self._subscriptions = merged
        self.subscribed_bytes = sum(subscription.size for subscription in merged.values())
        if came or gone:
            _log.debug("subscriptions_changed", group=self._group, came=sorted(came), gone=sorted(gone))
        return bool(came or gone)


# Reactions to events of consumer groups (RocketMQ: DefaultConsumerIdsChangeListener, Broker2Client).


class DefaultConsumerIdsChangeListener:
    """Tells the members of a group that it changed, and keeps the filters of groups.

    Calls come in the order of the events, while the table of consumers is locked.
    """

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


# The table of consumers (RocketMQ: ConsumerManager).


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
        self,
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
        listener: DefaultConsumerIdsChangeListener,
    ) -> None:
        """Makes an empty table. The reentrant lock guards it, and may be shared with other tables."""
        self._clock = clock
        self._lock = lock
        self._listener = listener
        self._members = GroupMembers("consumer")
        self._infos: dict[str, ConsumerGroupInfo] = {}
        self._subscribed_bytes = 0

    @property
    def groups(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._infos)

    @property
    def membership_count(self) -> int:
        """Pairs of group and client. Takes no lock."""
        return self._members.size

    def check_room(self, channel: ClientChannel, consumers: Sequence[ConsumerData], sharer: Sharer) -> None:
        """Checks that a client may join these groups with these subscriptions. Raises LIMIT_EXCEEDED."""
        with self._lock:
            self._members.check_room(channel, [data.group for data in consumers], sharer)
            of_all = self._subscribed_bytes
            for data in consumers:
                info = self._infos.get(data.group)
                merged = info.merged(data.subscriptions) if info else data.subscriptions
                of_group = sum(subscription.size for subscription in merged)
                if of_group > MAX_GROUP_SUBSCRIPTION_BYTES:
                    raise limit_exceeded(
                        "bytes of the subscriptions of one consumer group", of_group, MAX_GROUP_SUBSCRIPTION_BYTES
                    )
                of_all += of_group - (info.subscribed_bytes if info else 0)
            if of_all > max(MAX_SUBSCRIPTION_BYTES, self._subscribed_bytes):
                raise limit_exceeded("bytes of all subscriptions", of_all, MAX_SUBSCRIPTION_BYTES)

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
            bytes_before = group_info.subscribed_bytes
            resubscribed = group_info.update_subscriptions(data.subscriptions)
            self._subscribed_bytes += group_info.subscribed_bytes - bytes_before
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

    def _put(self, group: str, info: ClientChannelInfo, group_info: ConsumerGroupInfo) -> bool:
        """Adds or renews a member. Returns whether the ids of the group's clients may have changed."""
        known = self._members.of(group).get(info.channel)
        self._members.put(group, info)
        if known is None:
            _log.debug("consumer_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)
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
        for group in left:
            if group in self._members.groups:
                self._tell_change(group, self._infos[group].attributes)
            else:
                self._subscribed_bytes -= self._infos.pop(group).subscribed_bytes
                self._listener.on_unregister(group)
        return sum(left.values())

    def _tell_change(self, group: str, attributes: ConsumerAttributes) -> None:
        """Tells the members of a group that shares queues out; the members of a broadcasting one have nothing to do."""
        if attributes.message_model is not MessageModel.BROADCASTING:
            self._listener.on_change(group, tuple(self._members.of(group)))
