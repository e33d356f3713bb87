"""The route tables and what happens to them (RocketMQ: RouteInfoManager)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2

from namesrv.core import fragments, kv_config
from namesrv.core.channels import ChannelTable
from namesrv.core.clock import Clock
from namesrv.core.errors import BrokerNotRegistered, NeedFullRegistration, ShuttingDown
from namesrv.core.records import (
    MASTER_ID,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    LiveKey,
    QueueNumbers,
    RegisterBrokerResult,
    Registration,
    RemovalReason,
    RemovedBroker,
)
from namesrv.core.signs_of_life import SignsOfLife
from namesrv.core.snapshot import RouteSnapshot, TopicTableCopies
from namesrv.core.steps import Steps
from namesrv.core.table_edit import TableEdit, Tables
from namesrv.core.topic_lists import TopicLists

BROKER_CHANNEL_EXPIRED_TIME = 120.0
"""Seconds of silence after which a broker is removed (RocketMQ's constant of that name)."""


BROKER_SLICE = 50
"""Brokers that are removed before giving way: about a millisecond."""

GROUP_SLICE = 20
"""Groups that are given one topic before giving way: two milliseconds where it has a thousand groups already."""


class NamesrvIdentity(NamedTuple):
    """Which name server, and which lifetime of it."""

    name: str
    epoch: str


class RouteInfoManager:
    """The five tables, the channels, and who is alive.

    Everything happens on one thread, so there is no lock. Changes are ``Steps``: they give way between slices while
    they prepare, and publish in one step at their end. Only one of them may be under way at a time; look-ups and
    signs of life may come in between.
    """

    def __init__(
        self,
        identity: NamesrvIdentity,
        clock: Clock,
        new_channel_id: Callable[[], str],
        expired_time: float = BROKER_CHANNEL_EXPIRED_TIME,
    ) -> None:
        """Starts empty.

        Args:
            identity: Name and epoch that answers carry.
            clock: Where time comes from.
            new_channel_id: Makes unguessable channel ids.
            expired_time: Seconds of silence after which a broker, or an idle channel, is removed.
        """
        self.identity = identity
        self.revision = 0
        self.tables = Tables()
        self.topic_lists = TopicLists(self.tables)
        self.kv_config = kv_config.EMPTY
        self.channels = ChannelTable(new_channel_id)
        self.frozen = False
        """True from the beginning of a shutdown: the tables do not change any more."""
        self._clock = clock
        self._expired_time = expired_time
        self._generation = 0
        self._signs_of_life = SignsOfLife(clock, expired_time)
        self._header_fragment: tuple[int, bytes] = (-1, b"")
        self._topic_table_copies = TopicTableCopies()

    # Registration

    def register_broker(self, registration: Registration) -> Steps[RegisterBrokerResult]:
        """Registers a broker, or renews its registration (RocketMQ: registerBroker).

        Differences from RocketMQ 4: groups are keyed by cluster and name, so two clusters may have a group of one
        name; an address that comes back under another name leaves its old group; a broker whose id another address
        takes over is removed at once and not at its expiry.

        Raises:
            ChannelGone: The registration names a channel that is not open.
            NeedFullRegistration: It is an increment, and its base is not what is held here.
            ShuttingDown: The tables are frozen.
            NamesrvError: Whatever the iteration of topic_configs raises.
        """
        self._check_open(registration)
        broker, broker_id = registration.broker, registration.broker_id
        live = self.tables.broker_live_table.get(registration.live_key)
        _check_base_version(registration, live)
        edit = TableEdit(self.tables)
        replaced: list[RemovedBroker] = []
        if live is not None and live.broker != broker:
            group_gone = yield from edit.remove_broker(live)
            replaced.append(RemovedBroker(live, RemovalReason.REPLACED, group_gone, edit.topics_removed))
            live = None
        holder = self._put_into_group(edit, registration)
        if holder is not None:
            edit.remove_live(holder)
            replaced.append(RemovedBroker(holder, RemovalReason.REPLACED, group_gone=False, topics_removed=0))
        is_new = live is None or live.broker_id != broker_id
        if broker_id == MASTER_ID and (is_new or live is None or live.data_version != registration.data_version):
            yield from edit.put_topics(broker, registration.topic_configs)
        if registration.filter_servers is not None:
            edit.put_filter_servers(registration.live_key, registration.filter_servers)
        renewed = self._live_info(registration)
        edit.put_live(renewed)

        self._check_open(registration)  # the channel may have ended while this was being prepared
        changed = self._publish(edit)
        for gone in replaced:
            self._forget(gone.live)
        self._generation = renewed.generation
        if live is not None and live.channel_id is not None:
            self.channels.unbind(live.channel_id, live.key)
        if renewed.channel_id is not None:
            self.channels.bind(renewed.channel_id, renewed.key)
        self._heard(renewed)
        ha_server_addr, master_addr = self._master_of(renewed)
        return RegisterBrokerResult(renewed.generation, changed, is_new, ha_server_addr, master_addr, tuple(replaced))

    def unregister_broker(
        self, broker: BrokerKey, broker_addr: str, reason: RemovalReason, generation: int | None = None
    ) -> Steps[RemovedBroker | None]:
        """Removes a broker by its cluster and address (RocketMQ: unregisterBroker, without its bug #5374).

        Args:
            broker: The group that the broker must be in.
            broker_addr: Its address.
            reason: Why it leaves.
            generation: If given, the broker goes only if this is its current registration.

        Returns:
            What was removed; None if there was nothing to remove.

        Raises:
            ShuttingDown: The tables are frozen.
        """
        if self.frozen:
            raise ShuttingDown
        return (
            yield from self._remove(
                LiveKey(broker.cluster_name, broker_addr),
                reason,
                lambda live: live.broker == broker and generation in (None, live.generation),
            )
        )

    def register_topic(self, topic: str, queues: Mapping[BrokerKey, QueueNumbers]) -> Steps[bool]:
        """Gives registered groups queues of a topic (RocketMQ 5: registerTopic, which may stop half-way).

        The brokers' versions stay as they are, so their next unchanged registration changes nothing.

        Returns:
            Whether anything changed.

        Raises:
            BrokerNotRegistered: One of the groups is not registered.
            ShuttingDown: The tables are frozen.
        """
        edit = TableEdit(self.tables)
        for count, (broker, numbers) in enumerate(queues.items(), 1):
            if broker not in self.tables.broker_addr_table:
                raise BrokerNotRegistered(*broker)
            yield from edit.put_topics(broker, [(topic, numbers)])
            if count % GROUP_SLICE == 0:
                yield
        if self.frozen:
            raise ShuttingDown
        return self._publish(edit)

    # Signs of life

    def query_data_version(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Compares a broker's version with the one held (RocketMQ: QUERY_DATA_VERSION). Renews liveness if equal.

        Returns:
            Whether a registration is needed, and the version held; no version if there is no such broker here.
        """
        live = self._live_broker(broker, broker_id, broker_addr)
        if live is None:
            return True, None
        if live.data_version != data_version:
            return True, live.data_version
        self._heard(live)
        return False, live.data_version

    def broker_heartbeat(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> None:
        """Renews liveness (RocketMQ 5: BROKER_HEARTBEAT).

        Raises:
            BrokerNotRegistered: There is no such broker here.
        """
        live = self._live_broker(broker, broker_id, broker_addr)
        if live is None:
            raise BrokerNotRegistered(broker.cluster_name, broker.broker_name, broker_addr)
        self._heard(live)

    def open_channel(self) -> str:
        """Opens a channel and returns its id.

        Raises:
            ShuttingDown: The tables are frozen.
        """
        if self.frozen:
            raise ShuttingDown
        channel_id = self.channels.open()
        self._signs_of_life.channel_opened(channel_id)
        return channel_id

    def on_channel_destroy(self, channel_id: str) -> Steps[list[RemovedBroker]]:
        """Removes the brokers that registered last over a channel that has ended (RocketMQ: onChannelDestroy).

        A broker that has registered over another channel since is not touched, so a late end of an old stream
        changes nothing. The channel itself must have been ended in the channel table before.
        """
        return (
            yield from self._remove_all(
                self.channels.take_bound(channel_id),
                RemovalReason.CHANNEL_CLOSED,
                lambda live: live.channel_id == channel_id,
            )
        )

    def doubt_channel_end(self, channel_id: str, seconds: float) -> int:
        """Gives the brokers of a channel that has ended some seconds to register again, instead of removing them.

        For ends that may be this name server's own fault.

        Returns:
            How many brokers that is.
        """
        keys = self.channels.take_bound(channel_id)
        for key in keys:
            self._signs_of_life.give(key, seconds)
        return len(keys)

    def end_channel(self, channel_id: str) -> None:
        """Ends a channel at once: registrations that name it are refused from now on."""
        self.channels.end(channel_id)
        self._signs_of_life.channel_ended(channel_id)

    def scan_not_active_broker(self) -> Steps[list[RemovedBroker]]:
        """Removes the brokers that have been silent for longer than their timeout (RocketMQ: scanNotActiveBroker)."""
        overdue = yield from self._signs_of_life.overdue_brokers()
        return (
            yield from self._remove_all(
                overdue,
                RemovalReason.EXPIRED,
                lambda live: self._signs_of_life.is_overdue(live.key),
            )
        )

    def idle_channels(self) -> Steps[list[str]]:
        """Finds the channels that are to be closed: none of their brokers was heard of for the expiry time."""
        return (yield from self._signs_of_life.idle_channels())

    def grant_more_time(self, seconds: float) -> None:
        """Moves all deadlines: the name server itself did not run for so long, so nobody could reach it."""
        self._signs_of_life.grant_more_time(seconds)

    # KV configuration

    def publish_kv_config(self, table: kv_config.KvConfigTable) -> None:
        """Makes another KV configuration the current one; it must be durable already. Takes a revision."""
        self.kv_config = table
        self.revision += 1

    # Look-ups

    def pickup_topic_route_data(self, topic: str) -> bytes | None:
        """A topic's route as an encoded TopicRouteData (RocketMQ: pickupTopicRouteData); None if there is none."""
        queues = self.tables.topic_queue_table.get(topic)
        if queues is None:
            return None
        brokers = self.tables.broker_addr_table
        parts = [queue.fragment for queue in queues]
        groups = [brokers[queue.broker] for queue in queues]
        parts += [group.fragment for group in groups]
        parts += [group.filter_fragment for group in groups if group.filter_fragment]
        return b"".join(parts)

    def header_fragment(self) -> bytes:
        """The NamesrvHeader of the current revision, framed as field 1 of any answer."""
        revision, fragment = self._header_fragment
        if revision != self.revision:
            fragment = fragments.frame(1, self.header().SerializeToString())
            self._header_fragment = (self.revision, fragment)
        return fragment

    def header(self) -> route_data_pb2.NamesrvHeader:
        """Name, epoch and revision."""
        name, epoch = self.identity
        return route_data_pb2.NamesrvHeader(namesrv_name=name, epoch=epoch, revision=self.revision)

    def snapshot(self) -> RouteSnapshot:
        """All tables as they are now. Costs shallow copies; two snapshots of one revision share the largest."""
        tables = self.tables
        return RouteSnapshot(
            header_fragment=self.header_fragment(),
            taken_at_millis=self._clock.wall_millis(),
            clusters={cluster: frozenset(names) for cluster, names in tables.cluster_addr_table.items()},
            topics=self._topic_table_copies.at(self.revision, tables.topic_queue_table),
            groups=tuple(tables.broker_addr_table.values()),
            live=tuple(
                (live, self._signs_of_life.last_update_millis(key)) for key, live in tables.broker_live_table.items()
            ),
        )

    # Details

    def _publish(self, edit: TableEdit) -> bool:
        changed = edit.publish()
        self.revision += changed
        if edit.topic_names_changed:
            self.topic_lists.names_changed()
        return changed

    def _remove_all(
        self, keys: list[LiveKey], reason: RemovalReason, still_due: Callable[[BrokerLiveInfo], bool]
    ) -> Steps[list[RemovedBroker]]:
        removed = []
        for count, key in enumerate(keys, 1):
            gone = yield from self._remove(key, reason, still_due)
            if gone is not None:
                removed.append(gone)
            if count % BROKER_SLICE == 0:
                yield
        return removed

    def _remove(
        self, key: LiveKey, reason: RemovalReason, still_due: Callable[[BrokerLiveInfo], bool]
    ) -> Steps[RemovedBroker | None]:
        def is_due(live: BrokerLiveInfo) -> bool:
            return not self.frozen and still_due(live)

        live = self.tables.broker_live_table.get(key)
        if live is None or not is_due(live):
            return None
        edit = TableEdit(self.tables)
        group_gone = yield from edit.remove_broker(live)
        if not is_due(live):  # it may have been heard of while this was being prepared
            return None
        self._publish(edit)
        self._forget(live)
        return RemovedBroker(live, reason, group_gone, edit.topics_removed)

    def _check_open(self, registration: Registration) -> None:
        if self.frozen:
            raise ShuttingDown
        if registration.channel_id is not None:
            self.channels.check_open(registration.channel_id)

    def _put_into_group(self, edit: TableEdit, registration: Registration) -> BrokerLiveInfo | None:
        """Puts the broker into its group; returns the broker that held the id under another address."""
        broker, broker_id, broker_addr = registration.broker, registration.broker_id, registration.broker_addr
        group = edit.group(broker) or BrokerData(broker, {})
        # On a change of role <1, addr> goes before <0, addr> comes.
        addrs = {
            other_id: addr for other_id, addr in group.addrs.items() if addr != broker_addr or other_id == broker_id
        }
        holder_addr = addrs.get(broker_id, broker_addr)
        addrs[broker_id] = broker_addr
        zone_name, acting = registration.zone_name, registration.enable_acting_master
        edit.put_group(
            replace(
                group,
                addrs=addrs,
                zone_name=group.zone_name if zone_name is None else zone_name,
                enable_acting_master=group.enable_acting_master if acting is None else acting,
            )
        )
        if holder_addr == broker_addr:
            return None
        return self.tables.broker_live_table[LiveKey(broker.cluster_name, holder_addr)]

    def _live_info(self, registration: Registration) -> BrokerLiveInfo:
        timeout = registration.timeout_seconds
        return BrokerLiveInfo(
            broker=registration.broker,
            broker_id=registration.broker_id,
            broker_addr=registration.broker_addr,
            ha_server_addr=registration.ha_server_addr,
            data_version=registration.data_version,
            channel_id=registration.channel_id,
            generation=self._generation + 1,
            timeout_seconds=self._expired_time if timeout is None else timeout,
        )

    def _master_of(self, live: BrokerLiveInfo) -> tuple[str | None, str | None]:
        """HA address and address of a slave's master; neither for a master, or where no master is live."""
        master_addr = self.tables.broker_addr_table[live.broker].addrs.get(MASTER_ID)
        if live.broker_id == MASTER_ID or master_addr is None:
            return None, None
        master = self.tables.broker_live_table[LiveKey(live.broker.cluster_name, master_addr)]
        return master.ha_server_addr, master_addr

    def _live_broker(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> BrokerLiveInfo | None:
        live = self.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
        if live is None or live.broker != broker or live.broker_id != broker_id:
            return None
        return live

    def _heard(self, live: BrokerLiveInfo) -> None:
        channel_id = live.channel_id
        is_open = channel_id is not None and channel_id in self.channels
        self._signs_of_life.heard(live, channel_id if is_open else None)

    def _forget(self, live: BrokerLiveInfo) -> None:
        self._signs_of_life.forget(live.key)
        if live.channel_id is not None:
            self.channels.unbind(live.channel_id, live.key)


def _check_base_version(registration: Registration, live: BrokerLiveInfo | None) -> None:
    """An increment must build on exactly what is held (upstream's #4522 and #9411 lost whole tables here)."""
    base = registration.base_version
    if base is None:
        return
    if live is None or live.broker != registration.broker or live.broker_id != registration.broker_id:
        raise NeedFullRegistration("this name server holds no registration of the broker; send the full table")
    if live.data_version != base:
        raise NeedFullRegistration(f"this name server holds {live.data_version}, not {base}; send the full table")
