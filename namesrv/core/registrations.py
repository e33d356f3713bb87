"""Registrations: of a broker with its topics, and of one topic at groups that are registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from namesrv.core.changes import Cause
from namesrv.core.errors import Reason, Refused, broker_not_registered
from namesrv.core.model import (
    MASTER_ID,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    Member,
    QueueData,
    QueueNumbers,
    RegisterBrokerResult,
    Registration,
    RemovalReason,
    RemovedBroker,
    ReportedQueues,
    StaticMapping,
)
from namesrv.core.pace import paced
from namesrv.core.state import RouteState
from namesrv.core.transaction import Transaction

REGISTER_BROKER = Cause("RegisterBroker")
REGISTER_TOPIC = Cause("RegisterTopic")

QUEUES_LIKE_A_TOPIC = 25
"""Queues in the mappings of static topics that cost as much as a topic."""

LOOKED_THROUGH = 100
"""Topics of a registration whose mappings are counted. A registration of more is large with its topics alone."""

ENCODED_ASIDE = 10_000
"""Topics, read already, above which encoding them aside is worth another hop to the thread."""


class UnreadTopics(NamedTuple):
    """The topics of a registration that nobody has read yet."""

    topics: Callable[[], int]
    """Returns about how many they are."""
    read: Callable[[], Mapping[str, ReportedQueues]]
    """Checks and returns them; it may raise Refused."""


def needs_topics(state: RouteState, registration: Registration) -> bool:
    """Whether a registration's topics count: it speaks for its group, and no version or fingerprint matches.

    The answer is for the present tables. They may differ when the registration runs.
    """
    if not _is_authoritative(state, registration):
        return False
    if state.behaviour.delete_topic_with_broker_registration:
        return True
    if registration.topic_by_topic:
        fingerprint = registration.table_fingerprint
        return fingerprint is None or fingerprint != state.index.table_fingerprints.get(registration.broker)
    live = state.live_broker(registration.broker, registration.broker_id, registration.broker_addr)
    return live is None or not live.version_matches(registration.data_version)


def _is_authoritative(state: RouteState, registration: Registration) -> bool:
    """Whether the broker is the master, or the slave that would stand in (RocketMQ 5: isPrimeSlave).

    As in RocketMQ 5, a slave with a merging registration speaks for a group without a master, also where no slave
    stands in. Its topics can be read there.
    """
    broker_id = registration.broker_id
    if broker_id == MASTER_ID:
        return True
    may_speak = state.behaviour.support_acting_master or registration.topic_by_topic
    if not may_speak or registration.enable_acting_master is None:
        return False
    group = state.tables.broker_addr_table.get(registration.broker)
    members = () if group is None else group.members
    return all(broker_id <= one.broker_id for one in members if one.broker_addr != registration.broker_addr)


def master_of(state: RouteState, live: BrokerLiveInfo) -> tuple[str | None, str | None]:
    """Returns HA address and address of a slave's master; neither for a master, or without a confirmed one."""
    master_addr = state.tables.broker_addr_table[live.broker].addrs.get(MASTER_ID)
    if live.broker_id == MASTER_ID or master_addr is None:
        return None, None
    master = state.tables.broker_live_table[LiveKey(live.broker.cluster_name, master_addr)]
    return (master.ha_server_addr, master_addr) if state.is_confirmed(master) else (None, None)


@dataclass
class BrokerRegistration:
    """The change that registers a broker, or renews its registration (RocketMQ: registerBroker).

    Differences from RocketMQ 4:

    - Groups are keyed by cluster and name, so two clusters may have a group of one name.
    - An address that comes back under another name leaves its old group.
    - A broker loses its id to another address at once, not at its expiry.

    A merging registration is RocketMQ 5's: it compares each topic that it names, and the others stay.

    Raises:
        CHANNEL_GONE: The registration names a channel that is not open.
        NEED_FULL_REGISTRATION: It is an increment on a version that is not held here.
        STALE_STATE_VERSION: A confirmed broker at another address holds the id with a higher state version.
        SHUTTING_DOWN: The tables are frozen.
    """

    state: RouteState
    registration: Registration
    cause: Cause = REGISTER_BROKER
    principal: str = ""
    """The principal that registers, empty without permits: the mass-loss guard judges each one separately."""
    unread: UnreadTopics | None = None

    def __post_init__(self) -> None:
        self._key, self._topics = self.registration.live_key, self.registration.topic_configs
        self._encoded: Mapping[ReportedQueues, QueueData] = {}

    @property
    def topics_to_read(self) -> int:
        """About how many topics ``read`` reads. It needs no tables that stand still: other changes continue."""
        if self._topics is None:
            return self._unread_topics
        return len(self._topics) if len(self._topics) > ENCODED_ASIDE else 0

    @property
    def _unread_topics(self) -> int:
        return 0 if self.unread is None or not needs_topics(self.state, self.registration) else self.unread.topics()

    def read(self) -> None:
        """Reads the topics, with yield points. Raises Refused if they break a rule."""
        if self._topics is None:
            assert self.unread is not None, "topics that count come with the registration"
            self._topics = self.unread.read()
        queue_datas, broker = self.state.index.queue_datas, self.registration.broker
        self._encoded = queue_datas.encoded(broker, self._topics.values())

    @property
    def topics(self) -> int:
        registration, index = self.registration, self.state.index
        named = self._unread_topics if self._topics is None else len(self._topics)
        count = named + _mapped_queues(self._topics, registration.mappings) // QUEUES_LIKE_A_TOPIC
        live = self.state.tables.broker_live_table.get(self._key)
        if live is not None and (live.broker, live.broker_id) == (registration.broker, registration.broker_id):
            return count
        # It comes to its group, or leaves another one: what either has may change.
        groups = {registration.broker, registration.broker if live is None else live.broker}
        return count + sum(len(index.topics_by_broker.get(group, ())) for group in groups)

    def prepare(self) -> None:
        state, registration = self.state, self.registration
        self._check_open()
        self._transaction = transaction = state.begin(self.cause)
        self._before = before = state.tables.broker_live_table.get(self._key)
        _check_base_version(registration, before)
        self._brings_topics = needs_topics(state, registration)
        if self._brings_topics and self._topics is None:  # the tables have changed since `topics_to_read`
            self.read()
        self._renewed = self._live_info(before)
        self._replaced = self._put_into_group(transaction, before)
        if self._brings_topics:
            self._put_topics(transaction)
        if registration.filter_servers is not None:
            transaction.put_filter_servers(self._key, registration.filter_servers)
        transaction.put_live(self._renewed)
        transaction.prepare()

    def commit(self) -> RegisterBrokerResult:
        state, registration = self.state, self.registration
        before, renewed, replaced = self._before, self._renewed, self._replaced
        self._check_open()  # the channel may have ended while this was being prepared
        changed = state.commit(self._transaction)
        if self._brings_topics:
            state.index.table_fingerprints[registration.broker] = registration.table_fingerprint
        for gone in replaced:
            state.forget(gone.live)
        self._renew(before, renewed)
        is_new = before is None or (before.broker, before.broker_id) != (renewed.broker, renewed.broker_id)
        self._note_increment(was_known=not (is_new or before is None or before.unconfirmed))
        ha_server_addr, master_addr = master_of(state, renewed)
        return RegisterBrokerResult(renewed.generation, changed, is_new, ha_server_addr, master_addr, tuple(replaced))

    def _note_increment(self, *, was_known: bool) -> None:
        """Remembers a broker that may have sent increments only. A known broker has sent more before."""
        registration = self.registration
        says_little = registration.topic_by_topic and registration.topic_count <= 1
        if says_little and (not was_known or self._key in self.state.possibly_partial):
            self.state.possibly_partial.add(self._key)
        else:
            self.state.possibly_partial.discard(self._key)

    def _check_open(self) -> None:
        self.state.check_not_frozen()
        if self.registration.channel_id is not None:
            self.state.liveness.check_open(self.registration.channel_id)

    def _put_into_group(self, transaction: Transaction, before: BrokerLiveInfo | None) -> list[RemovedBroker]:
        """Puts the broker into its group, and removes it under its old name, and who holds its id. Returns these."""
        registration = self.registration
        replaced: list[RemovedBroker] = []
        if before is not None and before.broker != registration.broker:
            replaced.append(transaction.remove_broker(before, RemovalReason.REPLACED))
        broker, broker_id, broker_addr = registration.broker, registration.broker_id, registration.broker_addr
        group = transaction.group(broker) or BrokerData(broker)
        holder_addr = group.addrs.get(broker_id, broker_addr)
        if holder_addr != broker_addr:
            holder = self.state.tables.broker_live_table[LiveKey(broker.cluster_name, holder_addr)]
            if self.state.is_confirmed(holder):
                _check_state_version(registration, holder)
            transaction.remove_live(holder, RemovalReason.REPLACED)
            replaced.append(RemovedBroker(holder, RemovalReason.REPLACED, group_gone=False, topics_removed=0))
        after = _with_broker(group, self._renewed.as_member(), registration)
        if after is not group:  # nearly never: it would be encoded again
            transaction.put_group(after)
        return replaced

    def _put_topics(self, transaction: Transaction) -> None:
        registration = self.registration
        broker, topic_configs, mappings = registration.broker, self._topics or {}, registration.mappings
        reported: Mapping[str, ReportedQueues] = topic_configs
        if registration.topic_by_topic:
            reported = transaction.with_mappings(broker, topic_configs, mappings)
        transaction.put_topics(broker, reported.items(), self._encoded)
        names_all = not (registration.topic_by_topic and mappings)  # as in RocketMQ
        exactly = self.state.behaviour.delete_topic_with_broker_registration and names_all
        if exactly and registration.base_version is None:
            transaction.remove_topics_but(broker, topic_configs.keys())

    def _live_info(self, before: BrokerLiveInfo | None) -> BrokerLiveInfo:
        registration = self.registration
        timeout, labels = registration.timeout_seconds, registration.labels
        if labels is None:
            labels = () if before is None else before.labels
        return BrokerLiveInfo(
            broker=registration.broker,
            broker_id=registration.broker_id,
            broker_addr=registration.broker_addr,
            ha_server_addr=registration.ha_server_addr,
            data_version=registration.data_version,
            channel_id=registration.channel_id,
            generation=self.state.generation + 1,
            timeout_seconds=self.state.expired_time if timeout is None else timeout,
            topic_by_topic=registration.topic_by_topic,
            labels=labels,
        )

    def _renew(self, before: BrokerLiveInfo | None, renewed: BrokerLiveInfo) -> None:
        """Has channel and time of a registration count from now on, and not those of the one before."""
        self.state.generation = renewed.generation
        if before is not None:
            self.state.liveness.unbind(before)
        self.state.liveness.bind(renewed)
        self.state.guard.confirmed(renewed.key, self.principal, self.state.behaviour)
        self.state.renew(renewed)


@dataclass
class TopicRegistration:
    """The change that gives registered groups queues of a topic (RocketMQ 5: registerTopic, which may stop half-way).

    The brokers' versions stay as they are, so their next unchanged registration changes nothing. The change tells
    whether anything changed.

    Raises:
        BROKER_NOT_REGISTERED: One of the groups is not registered.
        SHUTTING_DOWN: The tables are frozen.
    """

    state: RouteState
    topic: str
    queues: Mapping[BrokerKey, QueueNumbers]
    cause: Cause = REGISTER_TOPIC

    @property
    def topics(self) -> int:
        return len(self.queues)

    def prepare(self) -> None:
        self._transaction = transaction = self.state.begin(self.cause)
        for broker, numbers in paced(self.queues.items()):
            if broker not in self.state.tables.broker_addr_table:
                raise broker_not_registered(*broker)
            transaction.put_topics(broker, transaction.with_mappings(broker, {self.topic: numbers}, {}).items())
        transaction.prepare()

    def commit(self) -> bool:
        self.state.check_not_frozen()
        return self.state.commit(self._transaction)


def _with_broker(group: BrokerData, member: Member, registration: Registration) -> BrokerData:
    """A group with the broker in it, and with what else the broker says of it; the same one if that changes nothing."""
    after = group.with_member(member)
    zone_name = group.zone_name if registration.zone_name is None else registration.zone_name
    stated = registration.enable_acting_master
    acting = group.enable_acting_master if stated is None else stated
    if (zone_name, acting) == (group.zone_name, group.enable_acting_master):
        return after
    return replace(after, zone_name=zone_name, enable_acting_master=acting)


def _mapped_queues(topics: Mapping[str, ReportedQueues] | None, mappings: Mapping[str, StaticMapping]) -> int:
    """How many queues the mappings of static topics have, of the first topics."""
    reported = islice((topics or {}).values(), LOOKED_THROUGH)
    of_topics = sum(len(numbers[4].queue_ids) for numbers in reported if len(numbers) > 4)
    return of_topics + sum(len(mapping.queue_ids) for mapping in islice(mappings.values(), LOOKED_THROUGH))


def _check_state_version(registration: Registration, holder: BrokerLiveInfo) -> None:
    """A deposed master must not take the id back (upstream's #1464 and #3168)."""
    stated, held = registration.data_version.state_version, holder.data_version.state_version
    if held > stated:
        addr = holder.broker_addr
        text = f"the broker id is held by {addr} with state_version {held}, the registration has {stated}"
        raise Refused(Reason.STALE_STATE_VERSION, text, stated=stated, held=held, holder_addr=addr)


def _check_base_version(registration: Registration, live: BrokerLiveInfo | None) -> None:
    """An increment must build on exactly the held version (upstream's #4522 and #9411 lost whole tables here)."""
    base = registration.base_version
    if base is None:
        return
    if live is None or live.broker != registration.broker or live.broker_id != registration.broker_id:
        problem = "holds no registration of the broker"
    elif live.unconfirmed:  # topics that operators hold are not in a snapshot file
        problem = "has what it holds not from the broker itself"
    elif live.topic_by_topic:
        problem = "was told topic by topic"
    elif live.data_version != base:
        problem = f"holds {live.data_version}, not {base}"
    else:
        return
    raise Refused(Reason.NEED_FULL_REGISTRATION, f"this name server {problem}; send the full table")
