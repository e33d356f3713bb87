"""Transactions of the tables: how several tables change together, and what a change does to routes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from heapq import nsmallest

from namesrv_api.v1.admin_service_pb2 import BlastRadius, TopicsInUse

from namesrv.core import encoding
from namesrv.core.changes import (
    Cause,
    Change,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    LiveChange,
    QueuesChange,
    Row,
)
from namesrv.core.model import (
    MASTER_ID,
    Behaviour,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    IntentKind,
    IntentTable,
    LiveKey,
    QueueData,
    RemovalReason,
    RemovedBroker,
    ReportedQueues,
    ReportedTopic,
    StaticMapping,
    TopicQueues,
    WriteRule,
)
from namesrv.core.pace import paced, yield_point
from namesrv.core.tables import QueueDataTable, TableIndex, Tables
from namesrv_common.topic_names import is_application, listing_order

MERGES_KEPT, MERGED_GROUPS = 1_000, 64
"""Rows that are merged once for all topics that have the same row, and their most groups. This halves the time of an
transaction where topics lie on the same groups."""

EMPTY: Mapping[ReportedQueues, QueueData] = {}


class Transaction:
    """Changes of several tables that belong together. Nothing shows until ``after`` replaces the tables."""

    def __init__(
        self, tables: Tables, index: TableIndex, behaviour: Behaviour, intents: IntentTable, cause: Cause
    ) -> None:
        """Starts without changes. The intents are those that shall hold afterwards."""
        self.tables = tables
        self.index = index
        self.cause = cause
        self.behaviour = behaviour
        self.intents = intents
        self.topics: dict[str, TopicQueues | None] = {}
        self.put: dict[BrokerKey, dict[str, QueueData]] = {}
        self.removed: dict[BrokerKey, tuple[dict[str, QueueData], RemovalReason]] = {}
        self.groups: dict[BrokerKey, BrokerData | None] = {}
        self.live: dict[LiveKey, BrokerLiveInfo | None] = {}
        self.filters: dict[LiveKey, tuple[str, ...]] = {}
        self.gained: dict[BrokerKey, dict[str, None]] = {}
        self.held: dict[tuple[str, BrokerKey], QueueData | None] = {}
        self.reasons: dict[BrokerKey | LiveKey, RemovalReason] = {}
        self.new_groups: set[BrokerKey] = set()
        """Groups with topics that are not in the tables before it."""
        # The tables as this transaction leaves them, and the change that readers can see, once it is prepared:
        self.after = tables
        self.change: Change | None = None

    def group(self, key: BrokerKey) -> BrokerData | None:
        """A broker group as this transaction would leave it."""
        return self.groups[key] if key in self.groups else self.tables.broker_addr_table.get(key)

    def lost_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """The queues that this transaction takes from a group, by topic."""
        return self.removed[broker][0] if broker in self.removed else {}

    def queues_of(self, topic: str) -> TopicQueues | None:
        """A topic's queues as this transaction would leave them."""
        return self.topics[topic] if topic in self.topics else self.tables.topic_queue_table.get(topic)

    def write_rule(self, key: BrokerKey) -> WriteRule:
        """The rule of a group as this would leave it. An operator's intent comes first, then a lost master."""
        kind = self.intents.of_group(key)
        if kind is not None:
            return WriteRule.WIPED if kind is IntentKind.WIPE_WRITE_PERM else WriteRule.ADDED
        group = self.group(key)
        return WriteRule.WIPED if group is not None and self.is_acted_for(group) else WriteRule.REPORTED

    def is_acted_for(self, group: BrokerData) -> bool:
        """Whether a slave stands in for the master."""
        enabled = self.behaviour.support_acting_master and bool(group.enable_acting_master)
        return enabled and not group.has_master

    def put_group(self, group: BrokerData) -> None:
        """Adds or replaces a broker group; ``prepare`` makes its rule and fragments."""
        self.groups[group.key] = group

    def put_live(self, live: BrokerLiveInfo) -> None:
        self.live[live.key] = live

    def put_filter_servers(self, key: LiveKey, filter_servers: tuple[str, ...]) -> None:
        """Replaces a broker's filter servers; an empty tuple removes them."""
        self.filters[key] = filter_servers

    def put_topics(
        self, broker: BrokerKey, configs: Iterable[ReportedTopic], encoded: Mapping[ReportedQueues, QueueData] = EMPTY
    ) -> None:
        """Gives a group the queues that the configurations say. Topics that are not named stay as they are.

        ``encoded`` has QueueDatas that were made before.
        """
        self._drop_unused_queue_datas(broker)
        if broker not in self.tables.broker_addr_table:
            self.new_groups.add(broker)
        # Each call in this loop adds to the cost of every registration.
        queue_datas, row = self.index.queue_datas, self.tables.topic_queue_table.get
        held = self.intents.holds_of(broker.cluster_name)
        interned = queue_datas.of_group(broker)
        edited, edited_before = self.topics, bool(self.topics)
        put, gained = self.put.setdefault(broker, {}), self.gained.setdefault(broker, {})
        known = self.index.topics_by_broker.get(broker, ())
        merged: dict[tuple[TopicQueues, bytes], TopicQueues] = {}
        for topic, reported in paced(configs):
            queue_data = interned.get(reported)
            if queue_data is None:
                queue_data = queue_datas.added(broker, reported, encoded.get(reported))
            if queue_data.mapping is not None:
                yield_point()
            if held and topic in held:
                self.held[topic, broker] = queue_data
                continue
            before = edited[topic] if edited_before and topic in edited else row(topic)
            if before is None:
                after: TopicQueues = (queue_data.fragment,)
            else:
                may_repeat = len(before) <= MERGED_GROUPS
                alike = merged.get((before, queue_data.fragment)) if may_repeat else None
                after = alike or _with_queue_data(before, queue_data, queue_datas)
                if after is before:
                    continue
                if alike is None and may_repeat and len(merged) < MERGES_KEPT:
                    merged[before, queue_data.fragment] = after
            edited[topic] = after
            put[topic] = queue_data
            if topic not in known:
                gained[topic] = None

    def with_mappings(
        self, broker: BrokerKey, configs: Mapping[str, ReportedQueues], mappings: Mapping[str, StaticMapping]
    ) -> Mapping[str, ReportedQueues]:
        """Configurations with the mappings of static topics, new mappings or those that the group has reported before.

        A mapping without its topic's configuration needs an earlier registration that had the configuration. Otherwise
        it is dropped.
        """
        if not mappings and broker not in self.index.queue_datas.mapped:
            return configs
        found: dict[str, ReportedQueues] = {}
        for topic in paced(itertools.chain(configs, mappings.keys() - configs.keys())):
            numbers, mapping = configs.get(topic), mappings.get(topic)
            if numbers is None or mapping is None:
                present = self._reported_by(broker, topic)
                if present is not None:
                    numbers, mapping = numbers or present.numbers, mapping or present.mapping
            if numbers is not None:
                found[topic] = numbers if mapping is None else (*numbers[:4], mapping)
        return found

    def remove_topics_but(self, broker: BrokerKey, kept: AbstractSet[str]) -> None:
        """Takes all topics but some from a group (RocketMQ: deleteTopicWithBrokerRegistration)."""
        dropped = self.index.topics_by_broker.get(broker, {}).keys() - kept
        self.remove_queues(broker, dropped, RemovalReason.NOT_IN_REGISTRATION)
        for topic in self.index.held_by_group.get(broker, ()):
            if topic not in kept:
                self.held[topic, broker] = None

    def remove_topic(self, topic: str, cluster_name: str | None, *, hold: bool = False) -> int:
        """Takes a topic's queues from the groups of one cluster, or of all. Returns from how many groups.

        ``hold`` remembers what the brokers report of it.
        """
        queue_datas = map(self.index.queue_datas.of, self.queues_of(topic) or ())
        taken = [one for one in queue_datas if cluster_name in (None, one.broker.cluster_name)]
        for queue_data in taken:
            if hold:
                self.held[topic, queue_data.broker] = queue_data
            self.remove_queues(queue_data.broker, (topic,), RemovalReason.DELETED_BY_OPERATOR)
        return len(taken)

    def release_topic(self, topic: str) -> int:
        """Gives a topic back to the groups for which no intent holds it. Returns the number of these groups."""
        restored = 0
        for broker, queue_data in self.index.held_queue_table.get(topic, {}).items():
            released = (topic, broker) in self.held
            if not released and topic not in self.intents.holds_of(broker.cluster_name):
                self.put_topics(broker, [(topic, queue_data.reported)])
                self.held[topic, broker] = None
                restored += 1
        return restored

    def remove_queues(self, broker: BrokerKey, topics: Iterable[str], reason: RemovalReason) -> None:
        lost, _ = self.removed.setdefault(broker, ({}, reason))
        queue_datas = self.index.queue_datas
        for topic in paced(topics):
            queues = self.queues_of(topic) or ()
            index, is_there = queue_datas.place(queues, broker)
            if is_there:
                lost[topic] = queue_datas.of(queues[index])
                self.topics[topic] = (*queues[:index], *queues[index + 1 :]) or None

    def remove_live(self, live: BrokerLiveInfo, reason: RemovalReason) -> None:
        """Removes a broker's live row and filter servers. Callers must update its group."""
        self.live[live.key] = None
        self.filters[live.key] = ()
        self.reasons[live.key] = reason

    def remove_broker(self, live: BrokerLiveInfo, reason: RemovalReason) -> RemovedBroker:
        """Removes a broker from all tables; the last one of a group takes the group and its queues with it."""
        self.remove_live(live, reason)
        group = self.group(live.broker)
        assert group is not None, "a live broker is always in its group"
        left = group.without(live.broker_addr)
        if left.members:
            self.put_group(left)
            return RemovedBroker(live, reason, group_gone=False, topics_removed=0)
        broker = live.broker
        self.groups[broker] = None
        self.reasons[broker] = reason
        self.remove_queues(broker, self.index.topics_by_broker.get(broker, ()), RemovalReason.GROUP_GONE)
        for topic in paced(self.index.held_by_group.get(broker, ())):
            self.held[topic, broker] = None
        return RemovedBroker(live, reason, group_gone=True, topics_removed=len(self.lost_queues(broker)))

    def prepare(self, *more: Row) -> None:
        """Works out the tables after this, and the change that readers can see, with more rows. Call it last."""
        tables, rows = self.tables, list[Row]()
        if self.filters:
            self._prepare_filters(rows)
        if self.groups:
            self._put_under_other_rules()
            self._prepare_groups(rows)
        for key, live in self.live.items():
            before = tables.broker_live_table.get(key)
            if live is None or before is None or not live.same_but_renewed(before):
                rows.append(LiveChange(key, before, live, None if live else self.reasons[key]))
        rows += (QueuesChange(broker, lost, None, reason) for broker, (lost, reason) in self.removed.items() if lost)
        rows += (
            QueuesChange(broker, None, put, write=self.write_rule(broker)) for broker, put in self.put.items() if put
        )
        self.after = Tables(
            tables.topic_queue_table.changed(self.topics),
            self.after.broker_addr_table,
            tables.broker_live_table.compacted().changed(self.live),  # brokers are few, so this takes milliseconds
            self.after.filter_server_table,
        )
        rows += more
        if rows:
            self.change = Change(self.cause, tuple(rows))

    def _put_under_other_rules(self) -> None:
        """Puts all queues of a group whose rule changes, as its permission in force does."""
        for key, group in self.groups.items():
            before = self.tables.broker_addr_table.get(key)
            if group is None or before is None or self.write_rule(key) is before.write:
                continue
            put = self.put.setdefault(key, {})
            for topic in paced(self.index.topics_by_broker.get(key, ())):
                queue_data = self.index.queue_datas.of_broker(self.queues_of(topic) or (), key)
                if queue_data is not None:  # else it is lost
                    put.setdefault(topic, queue_data)

    def _prepare_filters(self, rows: list[Row]) -> None:
        """Works out filter servers. Groups of whose routes they are a part have to be encoded again."""
        table, changed = self.tables.filter_server_table, dict[LiveKey, tuple[str, ...] | None]()
        for key, filter_servers in self.filters.items():
            if table.get(key, ()) != filter_servers:
                live = self.live.get(key) or self.tables.broker_live_table[key]
                changed[key] = after = filter_servers or None
                rows.append(FilterServersChange(key, table.get(key), after, broker=live.broker))
                group = self.group(live.broker)
                if group is not None:
                    self.put_group(group)
        self.after = self.after._replace(filter_server_table=table.compacted().changed(changed))

    def _prepare_groups(self, rows: list[Row]) -> None:
        """Prepares groups, and clusters that are added with their first group or removed with their last.

        A cluster may lose its only group and get another in one transaction. Then it has not changed.
        """
        table, clusters = self.tables.broker_addr_table, self.index.cluster_addr_table
        after: dict[BrokerKey, BrokerData | None] = {}
        named: dict[str, set[str]] = {key.cluster_name: set() for key in self.groups}
        left = {name: len(clusters.get(name, ())) for name in named}
        changed: list[Row] = []
        for key, wanted in self.groups.items():
            before, group = table.get(key), self._shown(wanted)
            if group is not None:
                named[key.cluster_name].add(key.broker_name)
            after[key] = group
            left[key.cluster_name] += (group is not None) - (before is not None)
            if group != before:
                changed.append(GroupChange(key, before, group, None if group else self.reasons[key]))
        came = ((name, frozenset(names)) for name, names in named.items() if names and name not in clusters)
        rows += (ClusterChange(name, None, names) for name, names in came)
        rows += changed
        self.after = self.after._replace(broker_addr_table=table.compacted().changed(after))
        for name in named:
            if name in clusters and not left[name]:
                reason = next(self.reasons[key] for key in self.groups if key.cluster_name == name)
                rows.append(ClusterChange(name, frozenset(clusters[name]), None, reason))

    def _shown(self, group: BrokerData | None) -> BrokerData | None:
        """A group with its rule and its fragments."""
        if group is None:
            return None
        group = replace(group, write=self.write_rule(group.key))
        table, keys = self.after.filter_server_table, map(group.live_key, group.members)
        acting_fragment = b""
        if self.is_acted_for(group) and group.write is not WriteRule.ADDED:
            lowest, *others = group.members
            members = (lowest._replace(broker_id=MASTER_ID), *others)
            acting_fragment = encoding.broker_data_fragment(replace(group, members=members))
        return replace(
            group,
            fragment=encoding.broker_data_fragment(group),
            filter_fragment=b"".join(
                encoding.filter_servers_fragment(key, found) for key in keys if (found := table.get(key))
            ),
            acting_fragment=acting_fragment,
        )

    def _reported_by(self, broker: BrokerKey, topic: str) -> QueueData | None:
        """What a group reports of a topic, held or not."""
        held = self.index.held_queue_table.get(topic)
        if held and broker in held:
            return held[broker]
        return self.index.queue_datas.of_broker(self.queues_of(topic) or (), broker)

    def _drop_unused_queue_datas(self, broker: BrokerKey) -> None:
        index, rows = self.index, self.tables.topic_queue_table
        if self.topics or not index.queue_datas.is_crowded(broker):
            return
        used = list(index.held_by_group.get(broker, {}).values())
        topics = index.topics_by_broker.get(broker, ())
        found = (index.queue_datas.of_broker(rows[topic], broker) for topic in paced(topics))
        used += filter(None, found)
        index.queue_datas.keep_only(broker, used)


def _with_queue_data(queues: TopicQueues, queue_data: QueueData, queue_datas: QueueDataTable) -> TopicQueues:
    """The queues with one group's part added or replaced; the same tuple if that changes nothing."""
    index, is_there = queue_datas.place(queues, queue_data.broker)
    if is_there and queues[index] == queue_data.fragment:
        return queues
    return (*queues[:index], queue_data.fragment, *queues[index + is_there :])


# The publication of a transaction: one step replaces the tables and updates their index.


def update_index(transaction: Transaction) -> None:
    """Has the index of the tables follow a transaction that replaces them in the same step."""
    _publish_topics_by_broker(transaction)
    _publish_groups(transaction)
    _publish_held(transaction)


def _publish_topics_by_broker(transaction: Transaction) -> None:
    index = transaction.index
    for broker, (lost, _) in transaction.removed.items():
        if lost:
            index.table_changed(broker)
        if transaction.group(broker) is not None:  # else all of its topics go with the group
            topics = index.topics_by_broker.get(broker, {})
            for topic in lost:
                topics.pop(topic, None)
    for broker, gained in transaction.gained.items():
        known = index.topics_by_broker.setdefault(broker, gained)
        smaller, larger = (known, gained) if len(known) < len(gained) else (gained, known)
        larger |= smaller
        index.topics_by_broker[broker] = larger
    for broker, put in transaction.put.items():
        if put:
            index.table_changed(broker)
            index.queue_datas.set_rule(broker, transaction.write_rule(broker))


def _publish_groups(transaction: Transaction) -> None:
    index = transaction.index
    for key, group in transaction.groups.items():
        names = index.cluster_addr_table.setdefault(key.cluster_name, set())
        clusters = index.clusters_by_name.setdefault(key.broker_name, {})
        if group is not None:
            index.queue_datas.set_rule(key, transaction.after.broker_addr_table[key].write)
            names.add(key.broker_name)
            clusters[key.cluster_name] = None
            continue
        index.topics_by_broker.pop(key, None)
        index.table_changed(key)
        index.queue_datas.forget_group(key)
        names.discard(key.broker_name)
        clusters.pop(key.cluster_name, None)
    for cluster_name, broker_name in transaction.groups:
        if not index.cluster_addr_table.get(cluster_name, True):
            del index.cluster_addr_table[cluster_name]
        if not index.clusters_by_name.get(broker_name, True):
            del index.clusters_by_name[broker_name]


def _publish_held(transaction: Transaction) -> None:
    index = transaction.index
    table, by_group = index.held_queue_table, index.held_by_group
    for (topic, broker), queue_data in transaction.held.items():
        index.table_changed(broker)
        holders, held = table.setdefault(topic, {}), by_group.setdefault(broker, {})
        if queue_data is None:
            holders.pop(broker, None)
            held.pop(topic, None)
        else:
            holders[broker] = held[topic] = queue_data
        if not holders:
            del table[topic]
        if not held:
            del by_group[broker]


# The effect of a transaction on the routes, measured once it is prepared and before it is published.

MAX_SAMPLE_TOPICS = 100
"""Most topics that are named."""

Queues = tuple[tuple[QueueData, WriteRule], ...]
"""A topic's queues, each with the rule of its group."""


def effect_of(transaction: Transaction) -> tuple[BlastRadius, TopicsInUse | None]:
    """Measures how many routes change, and which topics of applications producers can use no longer.

    Only an application's topic loses its last writable queue: no producer misses a broker's own, such as the one that
    is named after it.
    """
    named_after = transaction.index.names_of_groups()
    vanishing, losing, others, in_use = (list[str]() for _ in range(4))
    for topic, before, after, regrouped in _touched_topics(transaction):
        is_of_application = is_application(topic, named_after)
        if is_of_application and _is_taken(transaction, before, after):
            in_use.append(topic)
        if not regrouped and _shown(before) == _shown(after):
            continue
        if not after:
            vanishing.append(topic)
        elif is_of_application and _has_writable(before) and not _has_writable(after):
            losing.append(topic)
        else:
            others.append(topic)

    def sample(topics: Iterable[str]) -> list[str]:
        return nsmallest(MAX_SAMPLE_TOPICS, paced(topics), key=lambda topic: listing_order(topic, named_after))

    changed = len(vanishing) + len(losing) + len(others)
    radius = BlastRadius(
        topics_changed=changed,
        topics_losing_last_writable_queue=len(losing),
        topics_vanishing=len(vanishing),
        sample_topics=sample(vanishing or losing or others),
    )
    return radius, TopicsInUse(topic_count=len(in_use), topics=sample(in_use)) if in_use else None


def _touched_topics(transaction: Transaction) -> Iterator[tuple[str, Queues, Queues, bool]]:
    """Topics whose route may change, before and after, and whether one of their groups gets other addresses."""
    find, published = transaction.index.queue_datas.of, transaction.tables.broker_addr_table
    regrouped = {
        key
        for key, group in transaction.groups.items()
        if group is not None and key in published and published[key].addrs != group.addrs
    }
    topics: Iterator[str] = itertools.chain(
        itertools.chain.from_iterable(transaction.put.values()),
        itertools.chain.from_iterable(queues for queues, _ in transaction.removed.values()),
        itertools.chain.from_iterable(transaction.index.topics_by_broker.get(key, ()) for key in regrouped),
    )
    seen: set[str] = set()
    for topic in paced(topics):
        if topic in seen:
            continue
        seen.add(topic)
        before = map(find, transaction.tables.topic_queue_table.get(topic) or ())
        after = tuple(map(find, transaction.queues_of(topic) or ()))
        yield (
            topic,
            tuple((queue_data, published[queue_data.broker].write) for queue_data in before),
            tuple((queue_data, transaction.write_rule(queue_data.broker)) for queue_data in after),
            not regrouped.isdisjoint(queue_data.broker for queue_data in after),
        )


def _is_taken(transaction: Transaction, before: Queues, after: Queues) -> bool:
    """Whether producers lose a topic: no group with a master is left that can be written to.

    They also lose it if queues go that a group reports as writable, because they may be using these.
    """
    left = {queue_data.broker for queue_data, _ in after}
    gone = ((queue_data, rule) for queue_data, rule in before if queue_data.broker not in left)
    if any(data.is_writable_under(rule) or data.is_writable_under(WriteRule.REPORTED) for data, rule in gone):
        return True
    return _takes_messages(transaction, before) and not _takes_messages(transaction, after)


def _takes_messages(transaction: Transaction, queues: Queues) -> bool:
    """Whether a producer finds a writable queue: clients ask only masters to store messages."""
    groups = transaction.tables.broker_addr_table
    return any(data.is_writable_under(rule) and groups[data.broker].has_master for data, rule in queues)


def _shown(queues: Queues) -> list[bytes]:
    return [queue_data.fragments[rule] for queue_data, rule in queues]


def _has_writable(queues: Queues) -> bool:
    return any(queue_data.is_writable_under(rule) for queue_data, rule in queues)
