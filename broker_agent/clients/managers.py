"""The channels and tables of all clients, and the lock under which one heartbeat, end or silence is one step."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent import errors
from broker_agent.clients import limits
from broker_agent.timing import Timing
from namesrv_common.errors import Refused, limit_exceeded
from namesrv_common.server.shares import MACHINE, Sharer, ShareRules, Shares

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


# Channels: open streams, and the stand-in for clients that hold none.


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A client without a channel. It is known by its id and gets no notices."""

    client_id: str
    remote_addr: str = field(compare=False)
    is_active: bool = field(default=False, init=False)

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Does nothing: no stream leads to the client."""


@dataclass(eq=False, slots=True)
class StreamChannel:
    """An open stream to a client. Equal only to itself. Only the event loop changes it."""

    channel_id: str
    remote_addr: str
    sharer: Sharer  # the caller that opened it
    last_heard: float  # monotonic seconds
    is_active: bool = True  # open and not about to end
    pending: asyncio.Event = field(default_factory=asyncio.Event)  # set while something is to be sent
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set once the stream is to end without delay
    _groups: dict[str, None] = field(default_factory=dict)
    _closing: pb.ClientChannelClosing.Reason | None = None

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Has the client notified of a change of the group (RocketMQ: Broker2Client.notifyConsumerIdsChanged)."""
        if self.is_active and group not in self._groups:
            if len(self._groups) == limits.MAX_PENDING_NOTICES:
                self._end()
            self._groups[group] = None
            self.pending.set()

    def close(self, reason: pb.ClientChannelClosing.Reason) -> None:
        """Has the client notified of the reason, as the last message. Drops the notices that wait."""
        if self.is_active:
            self._closing = reason
            self._end()

    def take(self) -> list[pb.OpenClientChannelResponse]:
        """Returns the messages to send now; a closing is the last. Raises SLOW_READER if more would have to wait."""
        self.pending.clear()
        if self._closing is not None:
            return [pb.OpenClientChannelResponse(closing=pb.ClientChannelClosing(reason=self._closing))]
        if not self.is_active:
            raise errors.slow_reader()
        groups, self._groups = self._groups, {}
        notices = (pb.ConsumerIdsChanged(consumer_group=group) for group in groups)
        return [pb.OpenClientChannelResponse(consumer_ids_changed=notice) for notice in notices]

    def _end(self) -> None:
        self.is_active = False
        self.pending.set()
        self.ending.set()


ClientChannel = PlainClient | StreamChannel
"""The key of a client (RocketMQ: Channel)."""


class ClientChannels:
    """The open channels by their ids. ``ClientManagers`` owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, StreamChannel] = {}
        self._shares = Shares("open client channels", limits.MAX_CHANNELS, ShareRules(kept_percent=0))
        self._shutting_down = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, remote_addr: str, sharer: Sharer = MACHINE) -> StreamChannel:
        """Opens a channel; ``end`` must follow. Raises LIMIT_EXCEEDED or SHUTTING_DOWN."""
        if self._shutting_down:
            raise errors.shutting_down()
        self._shares.take(sharer)
        channel = StreamChannel(secrets.token_urlsafe(18), remote_addr, sharer, self._clock())
        self._open[channel.channel_id] = channel
        return channel

    def is_open(self, channel_id: str) -> bool:
        return channel_id in self._open and self._open[channel_id].is_active

    def heard(self, channel_id: str) -> StreamChannel:
        """Returns the channel that a client calls over, which is not idle now. Raises CHANNEL_GONE."""
        if not self.is_open(channel_id):
            text = "channel_id names no open client channel of this agent: open another, send a heartbeat over it"
            raise Refused(errors.Reason.CHANNEL_GONE, text)
        channel = self._open[channel_id]
        channel.last_heard = self._clock()
        return channel

    def end(self, channel: StreamChannel) -> bool:
        """Takes out a channel whose stream ends. Reports whether it was in."""
        channel.is_active = False
        if self._open.pop(channel.channel_id, None) is None:
            return False
        self._shares.give_back(channel.sharer)
        return True

    def idle(self) -> list[StreamChannel]:
        oldest_kept = self._clock() - limits.CLIENT_SILENCE_SECONDS
        return [channel for channel in self._open.values() if channel.last_heard < oldest_kept]

    def close_all(self, reason: pb.ClientChannelClosing.Reason) -> None:
        self._shutting_down = True
        for channel in self._open.values():
            channel.close(reason)


# Groups, what they read, and their filters.


@dataclass(slots=True)
class ClientChannelInfo:
    """A client in one group."""

    channel: ClientChannel  # the key of the client
    client_id: str
    language: str
    version: str
    last_update: float  # when it was last heard in this group: monotonic seconds
    remote_addr: str
    sharer: Sharer = MACHINE  # the caller whose share it takes: that which it joined as


class GroupTable:
    """Groups and their members. A group without members does not exist. ``ClientManagers`` owns it."""

    _kind = "producer"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[str, dict[ClientChannel, ClientChannelInfo]] = {}
        self._groups_of: dict[ClientChannel, set[str]] = {}
        self._shares = Shares(f"bytes of {self._kind} groups", limits.MAX_GROUP_BYTES, ShareRules(kept_percent=0))
        self.membership_count = 0  # pairs of group and client

    def groups(self) -> tuple[str, ...]:
        return tuple(self._members)

    def members(self, group: str) -> tuple[ClientChannelInfo, ...]:
        return tuple(self._members.get(group, {}).values())

    def check_can_join(
        self, channel: ClientChannel, groups: Iterable[str], sharer: Sharer, more_bytes: int = 0
    ) -> None:
        """Checks that a client may join these groups, and its caller hold more bytes. Raises LIMIT_EXCEEDED."""
        joined = [group for group in groups if group not in self._groups_of.get(channel, ())]
        largest = 1 + max((len(self._members.get(group, ())) for group in joined), default=0)
        if largest > limits.MAX_CLIENTS_PER_GROUP:
            raise limit_exceeded(f"clients of one {self._kind} group", largest, limits.MAX_CLIENTS_PER_GROUP)
        with self._shares.holding(sharer, len(joined) * limits.MEMBER_BYTES + more_bytes):
            pass

    def unregister(self, group: str, channel: ClientChannel) -> bool:
        return bool(self._remove([(group, channel)], "unregistered"))

    def do_channel_close_event(self, channel: ClientChannel) -> int:
        """Takes a client out of every group. Returns how many these were."""
        return self._remove([(group, channel) for group in self._groups_of.get(channel, ())], "channel_closed")

    def scan_not_active_channel(self) -> int:
        """Takes out the clients that were silent for too long. Returns how many memberships ended."""
        oldest_kept = self._clock() - limits.CLIENT_SILENCE_SECONDS
        members = ((group, info) for group, of_group in self._members.items() for info in of_group.values())
        return self._remove(
            [(group, info.channel) for group, info in members if info.last_update < oldest_kept], "silent"
        )

    def _add(self, group: str, info: ClientChannelInfo) -> None:
        self._shares.take(info.sharer, limits.MEMBER_BYTES)
        self._members.setdefault(group, {})[info.channel] = info
        self._groups_of.setdefault(info.channel, set()).add(group)
        self.membership_count += 1
        _log.debug(f"{self._kind}_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)

    def _remove(self, memberships: Iterable[tuple[str, ClientChannel]], why: str) -> int:
        """Takes clients out of groups, where they are in them. Returns how many memberships ended."""
        count_before, left = self.membership_count, dict[str, None]()
        for group, channel in memberships:
            if (info := self._members.get(group, {}).pop(channel, None)) is None:
                continue
            left[group] = None
            self.membership_count -= 1
            self._shares.give_back(info.sharer, limits.MEMBER_BYTES)
            self._groups_of[channel].discard(group)
            if not self._groups_of[channel]:
                del self._groups_of[channel]
            _log.debug(f"{self._kind}_left", group=group, client_id=info.client_id, why=why)
        for group in left:
            if not self._members[group]:
                del self._members[group]
            self._left(group)
        return count_before - self.membership_count

    def _left(self, group: str) -> None:
        """Reacts to members that have left a group, which may be empty now."""


class ProducerManager(GroupTable):
    """Producer groups and their clients."""

    def register_producer(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client that may join a group, or renews it there. Another id over its channel changes nothing."""
        known = self._members.get(group, {}).get(info.channel)
        if known is None:
            self._add(group, info)
        else:
            known.last_update, known.remote_addr = info.last_update, info.remote_addr


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
        return texts + limits.SUBSCRIPTION_BYTES * len(self.subscriptions)

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


class ConsumerFilterManager:
    """The filters by expression of consumer groups, and when each was in use (RocketMQ: ConsumerFilterManager).

    Keeps filters while their groups read the topics, and for a day after. Tags are no filters here.
    """

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
                data.dead_time_millis = self._timing.wall_millis()
                self._died[group, topic] = self._timing.clock()
        for topic, subscription in wanted.items():
            old = filters.get(topic)
            if old is None or subscription.sub_version >= old.client_version:
                self._died.pop((group, topic), None)
                filters[topic] = self._living(subscription, old)
        if not filters:
            del self._by_group[group]
        while len(self._died) > limits.MAX_DEAD_FILTERS:
            self._drop_longest_dead()

    def clean(self) -> None:
        """Drops filters that have been dead for a day."""
        oldest_kept = self._timing.clock() - limits.DEAD_FILTER_SECONDS
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
            born_time_millis=old.born_time_millis if old is not None and same else self._timing.wall_millis(),
        )

    def _drop_longest_dead(self) -> None:
        group, topic = next(iter(self._died))
        del self._died[group, topic]
        del self._by_group[group][topic]
        if not self._by_group[group]:
            del self._by_group[group]


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

    def _left(self, group: str) -> None:
        if group in self._members:
            self._notify(group)
        else:
            info = self._infos.pop(group)
            self._shares.give_back(info.sharer, info.size)
            self._filters.register(group, {})

    def _notify(self, group: str) -> None:
        """Notifies all members, unless they are broadcasting ones, which share no queues."""
        if self._infos[group].message_model != pb.MESSAGE_MODEL_BROADCASTING:
            for channel in self._members[group]:
                channel.notify_consumer_ids_changed(group)


class FilterServerManager:
    """The filter servers next to the broker, by channel (RocketMQ 4). ``ClientManagers`` owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._servers: dict[ClientChannel, tuple[str, float]] = {}  # to the address, and when it was last heard
        self.on_change: Callable[[tuple[str, ...]], None] = lambda _addresses: None
        """Called with the addresses, also with equal ones, under the lock of ``ClientManagers``."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Sorted, each once (RocketMQ: buildNewFilterServerList). May be read without the lock."""
        return tuple(sorted({addr for addr, _last_update in tuple(self._servers.values())}))

    def register_filter_server(self, channel: ClientChannel, addr: str) -> None:
        """Adds a filter server, or renews it. Raises LIMIT_EXCEEDED."""
        if channel not in self._servers:
            if len(self._servers) >= limits.MAX_FILTER_SERVERS:
                raise limit_exceeded("filter servers", len(self._servers) + 1, limits.MAX_FILTER_SERVERS)
            _log.info("filter_server_registered", addr=addr, remote_addr=channel.remote_addr)
        self._servers[channel] = addr, self._clock()
        self.on_change(self.addresses)

    def do_channel_close_event(self, channel: ClientChannel) -> int:
        return self._remove([channel] if channel in self._servers else [], "channel_closed")

    def scan_not_active_channel(self) -> int:
        oldest_kept = self._clock() - limits.FILTER_SERVER_SILENCE_SECONDS
        silent = [channel for channel, (_addr, last_update) in self._servers.items() if last_update < oldest_kept]
        return self._remove(silent, "silent")

    def _remove(self, channels: list[ClientChannel], why: str) -> int:
        for channel in channels:
            _log.info("filter_server_left", addr=self._servers.pop(channel)[0], why=why)
            self.on_change(self.addresses)
        return len(channels)


class ClientManagers:
    """Producers, consumers, their filters, filter servers and channels. ``ClientServer`` serves it.

    Whatever reads or changes a table holds ``lock``; only the event loop of ``ClientServer`` changes one.
    """

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.lock = threading.Lock()
        self.channels = ClientChannels(self.timing.clock)
        self.producers = ProducerManager(self.timing.clock)
        self.filters = ConsumerFilterManager(self.timing)
        self.consumers = ConsumerManager(self.timing.clock, self.filters)
        self.filter_servers = FilterServerManager(self.timing.clock)
        self._scan_due = self.timing.clock() + limits.SCAN_SECONDS
        self._nobody_goes_before = self.timing.clock()

    def heart_beat(self, request: pb.HeartbeatRequest, remote_addr: str, sharer: Sharer = MACHINE) -> list[str]:
        """Registers or renews a client in all groups of a checked heartbeat. Returns the consumer groups that changed.

        Raises CHANNEL_GONE or LIMIT_EXCEEDED. Nothing has changed then.
        """
        with self.lock:
            channel = self._channel(request.channel_id, request.client_id, remote_addr)
            producer_groups = [data.group_name for data in request.producer_groups]
            self.producers.check_can_join(channel, producer_groups, sharer)
            self.consumers.check_can_register(channel, request.consumer_groups, sharer)
            names = request.client_id, request.language, request.version
            info = ClientChannelInfo(channel, *names, self.timing.clock(), remote_addr, sharer)
            for group in producer_groups:
                self.producers.register_producer(group, replace(info))
            consumers = request.consumer_groups
            return [data.group_name for data in consumers if self.consumers.register_consumer(replace(info), data)]

    def unregister_client(self, request: pb.UnregisterClientRequest) -> bool:
        """Takes a client out of the groups that are named, or of all if none is. Reports whether it was in one."""
        with self.lock:
            if request.channel_id and not self.channels.is_open(request.channel_id):
                return False  # the end of the channel has removed everything
            channel = self._channel(request.channel_id, request.client_id)
            if request.HasField("producer_group") or request.HasField("consumer_group"):
                produced = self.producers.unregister(request.producer_group, channel)
                return self.consumers.unregister(request.consumer_group, channel) or produced
            left = self.producers.do_channel_close_event(channel) + self.consumers.do_channel_close_event(channel)
            return bool(left)

    def register_filter_server(self, request: pb.RegisterFilterServerRequest, remote_addr: str) -> None:
        """Registers or renews a filter server. Raises CHANNEL_GONE or LIMIT_EXCEEDED."""
        addr = request.filter_server_addr
        with self.lock:
            channel = self._channel(request.channel_id, f"filter server {addr}", remote_addr)
            self.filter_servers.register_filter_server(channel, addr)

    def on_channel_close(self, channel: StreamChannel, why: str = "closed") -> None:
        """The stream has ended: by the client, with its connection, or because it failed."""
        with self.lock:
            if self.channels.end(channel):
                tables = (self.producers, self.consumers, self.filter_servers)
                left = sum(table.do_channel_close_event(channel) for table in tables)
                _log.debug("client_channel_ended", remote_addr=channel.remote_addr, why=why, memberships=left)

    async def scan_periodically(self) -> None:
        """Scans every 10 s, first after 10 s (RocketMQ: ClientHousekeepingService)."""
        self._scan_due = self.timing.clock() + limits.SCAN_SECONDS
        while True:
            await asyncio.sleep(max(0.0, self._scan_due - self.timing.clock()))
            try:
                self.scan()
            except Exception:  # noqa: BLE001 - the boundary of a task: the next scan must come
                _log.exception("client_scan_failed")

    def scan(self) -> None:
        """Ends idle channels, and removes silent clients and filter servers."""
        now = self.timing.clock()
        if now - self._scan_due > limits.STALL_SECONDS:
            _log.warning("agent_stalled", seconds=round(now - self._scan_due, 1))
            self._nobody_goes_before = now + limits.STALL_GRACE_SECONDS
        self._scan_due = now + limits.SCAN_SECONDS
        with self.lock:
            self.filters.clean()
        if now < self._nobody_goes_before:
            return
        for channel in self.channels.idle():
            channel.close(pb.ClientChannelClosing.REASON_IDLE)
            self.on_channel_close(channel, "idle")
        with self.lock:
            producers = self.producers.scan_not_active_channel()
            consumers = self.consumers.scan_not_active_channel()
            self.filter_servers.scan_not_active_channel()
        if producers or consumers:
            _log.info("silent_clients_removed", producers=producers, consumers=consumers)

    def _channel(self, channel_id: str, client_id: str, remote_addr: str = "") -> ClientChannel:
        return self.channels.heard(channel_id) if channel_id else PlainClient(client_id, remote_addr)
