"""The manager of the route tables: registrations and lookups (RocketMQ: RouteInfoManager)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from namesrv_api.v1 import route_data_pb2

from namesrv.core import encoding
from namesrv.core.changes import Cause
from namesrv.core.edit import TableEdit
from namesrv.core.errors import BrokerNotRegistered, NeedFullRegistration, StaleStateVersion
from namesrv.core.heartbeats import Heartbeats, version_matches
from namesrv.core.mass_loss import FLEET, Owner
from namesrv.core.model import (
    MASTER_ID,
    ORDER_TOPIC_CONFIG,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueNumbers,
    RegisterBrokerResult,
    Registration,
    RemovalReason,
    RemovedBroker,
    ReportedQueues,
)
from namesrv.core.operator_changes import OperatorChanges
from namesrv.core.removals import BrokerRemovals
from namesrv.core.slices import Sliced
from namesrv.core.snapshot import ALL_TABLES, RouteSnapshot, RouteTable, TopicRows
from namesrv.core.tables import NO_TOPICS, route_fragments

REGISTER_BROKER = Cause("RegisterBroker")
REGISTER_TOPIC = Cause("RegisterTopic")

GROUP_SLICE = 20
"""Groups that are given one topic before giving way: two milliseconds where it has a thousand groups already."""


class TopicsNotRead(Exception):
    """A registration's topics count, which did not when it was read: what is held here has changed since."""


class RouteInfoManager(BrokerRemovals, OperatorChanges, Heartbeats):
    """The five tables, the channels, and who is alive: registration and lookups.

    How brokers leave is in ``BrokerRemovals``, what operators change in ``OperatorChanges``, who is alive in
    ``Heartbeats``.
    """

    # Registration

    def register_broker(
        self, registration: Registration, cause: Cause = REGISTER_BROKER, owner: Owner = FLEET
    ) -> Sliced[RegisterBrokerResult]:
        """Registers a broker, or renews its registration (RocketMQ: registerBroker).

        Differences from RocketMQ 4: groups are keyed by cluster and name, so two clusters may have a group of one
        name; an address that comes back under another name leaves its old group; a broker whose id another address
        takes over is removed at once and not at its expiry. A registration topic by topic is RocketMQ 5's: each topic
        that it names is compared, and the others stay.

        Args:
            owner: The principal that registers or, without permits, the address. The guard judges owner by owner.

        Raises:
            ChannelGone: The registration names a channel that is not open.
            NeedFullRegistration: It is an increment, and its base is not what is held here.
            StaleStateVersion: The id is held by another address with a higher state version (RocketMQ 5).
            ShuttingDown: The tables are frozen.
            TopicsNotRead: Its topics are needed and were not read; nothing has changed.
        """
        self._check_open(registration)
        edit = yield from self._begin_edit()
        before = self.tables.broker_live_table.get(registration.live_key)
        _check_base_version(registration, before)
        brings_topics = self.reads_topics(registration)
        if brings_topics and registration.topic_configs is None:
            raise TopicsNotRead
        replaced = yield from self._put_into_group(edit, registration, before)
        renewed = self._live_info(registration)
        try:
            if brings_topics:
                yield from self._put_topics(edit, registration)
            if registration.filter_servers is not None:
                edit.put_filter_servers(registration.live_key, registration.filter_servers)
            edit.put_live(renewed)
            yield from edit.prepare()

            self._check_open(registration)  # the channel may have ended while this was being prepared
            changed = self._commit(edit, cause)
        finally:
            if registration.broker not in self.tables.broker_addr_table:  # given up: nobody would let its queues go
                self.tables.queue_datas.forget_group(registration.broker)
        if brings_topics:
            self._note_mark(registration)
        for gone in replaced:
            self._forget(gone.live)
        self._renew(before, renewed, owner)
        is_new = before is None or (before.broker, before.broker_id) != (renewed.broker, renewed.broker_id)
        self._note_increment(registration, was_known=not (is_new or before is None or before.unconfirmed))
        ha_server_addr, master_addr = self._master_of(renewed)
        result = RegisterBrokerResult(renewed.generation, changed, is_new, ha_server_addr, master_addr, tuple(replaced))
        yield from self.tables.topic_queue_table.settle()
        return result

    def register_topic(
        self, topic: str, queues: Mapping[BrokerKey, QueueNumbers], cause: Cause = REGISTER_TOPIC
    ) -> Sliced[bool]:
        """Gives registered groups queues of a topic (RocketMQ 5: registerTopic, which may stop half-way).

        The brokers' versions stay as they are, so their next unchanged registration changes nothing.

        Returns:
            Whether anything changed.

        Raises:
            BrokerNotRegistered: One of the groups is not registered.
            ShuttingDown: The tables are frozen.
        """
        edit = yield from self._begin_edit()
        for count, (broker, numbers) in enumerate(queues.items(), 1):
            if broker not in self.tables.broker_addr_table:
                raise BrokerNotRegistered(*broker)
            reported = yield from edit.with_mappings(broker, {topic: numbers}, {})
            yield from edit.put_topics(broker, reported.items())
            if count % GROUP_SLICE == 0:
                yield
        self._check_not_frozen()
        return self._commit(edit, cause)

    def reads_topics(self, registration: Registration) -> bool:
        """Whether a registration's topics count: it speaks for its group, and no version or fingerprint matches.

        That is as the tables are now, and may be otherwise when the registration has its turn.
        """
        if not self._speaks_for_group(registration):
            return False
        if self.behaviour.delete_topic_with_broker_registration:
            return True
        if registration.topic_by_topic:
            mark = registration.table_fingerprint
            return mark is None or self.tables.table_fingerprints.get(registration.broker) != mark
        live = self._live_broker(registration.broker, registration.broker_id, registration.broker_addr)
        return live is None or not version_matches(live, registration.data_version)

    # Lookups

    def pickup_topic_route_data(self, topic: str, zone_name: str | None = None) -> bytes | None:
        """A topic's route as an encoded TopicRouteData (RocketMQ: pickupTopicRouteData); None if there is none.

        With a zone, groups of other zones are left out where their master is live, which may leave an empty route.
        """
        fragments = self.route_fragments(topic, zone_name)
        return None if fragments is None else b"".join(fragments)

    def route_fragments(self, topic: str, zone_name: str | None = None) -> list[bytes] | None:
        """The same in its fields, each of queues or a group as the one object that the tables hold."""
        queues = self.tables.topic_queue_table.get(topic)
        if queues is None:
            return None
        enabled = self.behaviour.order_message_enable
        order_topic_conf = self.kv_config.get(ORDER_TOPIC_CONFIG, topic) if enabled else None
        return route_fragments(self.tables, topic, queues, zone_name, order_topic_conf)

    def header_fragment(self) -> bytes:
        """The NamesrvHeader of the current revision, framed as field 1 of any answer."""
        revision, fragment = self._header_fragment
        if revision != self.revision:
            fragment = encoding.frame(1, self.header().SerializeToString())
            self._header_fragment = (self.revision, fragment)
        return fragment

    def header(self) -> route_data_pb2.NamesrvHeader:
        name, epoch = self.identity
        return route_data_pb2.NamesrvHeader(namesrv_name=name, epoch=epoch, revision=self.revision)

    def snapshot(self, wanted: Collection[RouteTable] = ALL_TABLES) -> RouteSnapshot:
        """Tables as they are now. Costs shallow copies of the brokers; topics are shared until they change."""
        tables, topics = self.tables, TopicRows(self.revision, NO_TOPICS)
        if RouteTable.TOPIC_QUEUES in wanted:
            topics = self._topic_table_copies.at(self.revision, tables.topic_queue_table)
        has_live = RouteTable.LIVE_BROKERS in wanted
        return RouteSnapshot(
            tables=wanted,
            revision=self.revision,
            header_fragment=self.header_fragment(),
            taken_at_millis=self._clock.wall_millis(),
            clusters={cluster: frozenset(names) for cluster, names in tables.cluster_addr_table.items()},
            topics=topics,
            in_force=tables.queue_datas.in_force,
            groups=tuple(tables.broker_addr_table.values()),
            live=tuple(tables.broker_live_table.values()) if has_live else (),
            last_heard=self._liveness.all_last_updates() if has_live else {},
        )

    def _note_increment(self, registration: Registration, *, was_known: bool) -> None:
        """Remembers a broker all of whose words may be an increment. Whoever was known here had said more before."""
        key = registration.live_key
        says_little = registration.topic_by_topic and registration.topic_count <= 1
        if says_little and (not was_known or key in self._possibly_partial):
            self._possibly_partial.add(key)
        else:
            self._possibly_partial.discard(key)

    def _note_mark(self, registration: Registration) -> None:
        """Remembers the table of which everything is here now."""
        if registration.table_fingerprint is None:
            self.tables.table_fingerprints.pop(registration.broker, None)
        else:
            self.tables.table_fingerprints[registration.broker] = registration.table_fingerprint

    def _check_open(self, registration: Registration) -> None:
        self._check_not_frozen()
        if registration.channel_id is not None:
            self.channels.check_open(registration.channel_id)

    def _put_into_group(
        self, edit: TableEdit, registration: Registration, before: BrokerLiveInfo | None
    ) -> Sliced[list[RemovedBroker]]:
        """Puts the broker into its group, and removes it under its old name, and who holds its id. Returns these."""
        replaced: list[RemovedBroker] = []
        if before is not None and before.broker != registration.broker:
            group_gone = yield from edit.remove_broker(before, RemovalReason.REPLACED)
            topics = len(edit.lost_queues(before.broker)) if group_gone else 0
            replaced.append(RemovedBroker(before, RemovalReason.REPLACED, group_gone, topics))
        broker, broker_id, broker_addr = registration.broker, registration.broker_id, registration.broker_addr
        group = edit.group(broker) or BrokerData(broker, {})
        holder_addr = group.addrs.get(broker_id, broker_addr)
        if holder_addr != broker_addr:
            holder = self.tables.broker_live_table[LiveKey(broker.cluster_name, holder_addr)]
            _check_state_version(registration, holder)
            edit.remove_live(holder, RemovalReason.REPLACED)
            replaced.append(RemovedBroker(holder, RemovalReason.REPLACED, group_gone=False, topics_removed=0))
        after = _with_broker(group, registration)
        if after is not group or not edit.is_shown_alike(group):  # nearly never: it would be encoded again
            edit.put_group(after)
        return replaced

    def _put_topics(self, edit: TableEdit, registration: Registration) -> Sliced[None]:
        broker, topic_configs, mappings = registration.broker, registration.topic_configs or {}, registration.mappings
        reported: Mapping[str, ReportedQueues] = topic_configs
        if registration.topic_by_topic:
            reported = yield from edit.with_mappings(broker, topic_configs, mappings)
        yield from edit.put_topics(broker, reported.items())
        names_all = not (registration.topic_by_topic and mappings)  # as in RocketMQ
        exactly = self.behaviour.delete_topic_with_broker_registration and names_all
        if exactly and registration.base_version is None:
            yield from edit.remove_topics_but(broker, topic_configs.keys())

    def _speaks_for_group(self, registration: Registration) -> bool:
        """Whether the broker is the master, or the slave that would stand in (RocketMQ 5: isPrimeSlave).

        As in RocketMQ 5, a slave that registers topic by topic speaks for a group without a master even where no slave
        stands in for one: its topics can be read there.
        """
        broker_id = registration.broker_id
        if broker_id == MASTER_ID:
            return True
        may_speak = self.behaviour.support_acting_master or registration.topic_by_topic
        if not may_speak or registration.enable_acting_master is None:
            return False
        group = self.tables.broker_addr_table.get(registration.broker)
        addrs = {} if group is None else group.addrs
        return all(broker_id <= other for other, addr in addrs.items() if addr != registration.broker_addr)

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
            topic_by_topic=registration.topic_by_topic,
        )

    def _master_of(self, live: BrokerLiveInfo) -> tuple[str | None, str | None]:
        """HA address and address of a slave's master; neither for a master, or where no master is live."""
        master_addr = self.tables.broker_addr_table[live.broker].addrs.get(MASTER_ID)
        if live.broker_id == MASTER_ID or master_addr is None:
            return None, None
        master = self.tables.broker_live_table[LiveKey(live.broker.cluster_name, master_addr)]
        return master.ha_server_addr, master_addr

    def _renew(self, before: BrokerLiveInfo | None, renewed: BrokerLiveInfo, owner: Owner) -> None:
        """Has channel and time of a registration count from now on, and not those of the one before."""
        self._generation = renewed.generation
        if before is not None and before.channel_id is not None:
            self.channels.unbind(before.channel_id, before.key)
        if renewed.channel_id is not None:
            self.channels.bind(renewed.channel_id, renewed.key)
        self.unconfirmed.pop(renewed.key, None)
        self.address_claims.registered(renewed)
        self._guard.confirmed(renewed, owner, self.behaviour)
        self._heard(renewed)


def _with_broker(group: BrokerData, registration: Registration) -> BrokerData:
    """A group with the broker in it, and with what else the broker says of it; the same one if that changes nothing."""
    broker_id, broker_addr = registration.broker_id, registration.broker_addr
    # On a change of role <1, addr> goes before <0, addr> comes.
    addrs = {other_id: addr for other_id, addr in group.addrs.items() if addr != broker_addr or other_id == broker_id}
    addrs[broker_id] = broker_addr
    unconfirmed = (group.unconfirmed & addrs.keys()) - {broker_id}
    zone_name = group.zone_name if registration.zone_name is None else registration.zone_name
    stated = registration.enable_acting_master
    acting = group.enable_acting_master if stated is None else stated
    said = addrs, unconfirmed, zone_name, acting
    if said == (group.addrs, group.unconfirmed, group.zone_name, group.enable_acting_master):
        return group
    return replace(group, addrs=addrs, unconfirmed=unconfirmed, zone_name=zone_name, enable_acting_master=acting)


def _check_state_version(registration: Registration, holder: BrokerLiveInfo) -> None:
    """A deposed master must not take the id back (upstream's #1464 and #3168)."""
    stated, held = registration.data_version.state_version, holder.data_version.state_version
    if held > stated:
        raise StaleStateVersion(stated, held, holder.broker_addr)


def _check_base_version(registration: Registration, live: BrokerLiveInfo | None) -> None:
    """An increment must build on exactly what is held (upstream's #4522 and #9411 lost whole tables here)."""
    base = registration.base_version
    if base is None:
        return
    if live is None or live.broker != registration.broker or live.broker_id != registration.broker_id:
        raise NeedFullRegistration("this name server holds no registration of the broker; send the full table")
    if live.unconfirmed:  # topics that operators hold are not in a snapshot file
        raise NeedFullRegistration("this name server has what it holds not from the broker itself; send the full table")
    if live.topic_by_topic:
        raise NeedFullRegistration("this name server was told topic by topic; send the full table")
    if live.data_version != base:
        raise NeedFullRegistration(f"this name server holds {live.data_version}, not {base}; send the full table")
