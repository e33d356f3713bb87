"""The tables, and how they change: an edit is prepared aside, in slices, and published in one step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from namesrv.core import fragments
from namesrv.core.behaviour import Behaviour
from namesrv.core.changes import (
    ClusterPut,
    ClusterRemoved,
    FilterServersPut,
    GroupPut,
    GroupRemoved,
    LivePut,
    LiveRemoved,
    QueuesPut,
    QueuesRemoved,
    Row,
)
from namesrv.core.intents import IntentKind, IntentTable
from namesrv.core.queue_data_table import QueueDataTable
from namesrv.core.records import (
    MASTER_ID,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    RemovalReason,
    TopicConfig,
    TopicQueues,
    WriteRule,
)
from namesrv.core.steps import Steps
from namesrv.core.topic_table import TopicTable

SLICE = 300
"""Topics that are worked on before giving way: about a millisecond, reading them from the request included."""

PUT_SLICE = 4_000
"""Topics that are noted as changed before giving way: less than a millisecond."""


@dataclass(slots=True)
class Tables:
    """The five tables of RocketMQ's RouteInfoManager, and what belongs to them."""

    topic_queue_table: TopicTable = field(default_factory=TopicTable)
    broker_addr_table: dict[BrokerKey, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    broker_live_table: dict[LiveKey, BrokerLiveInfo] = field(default_factory=dict)
    filter_server_table: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    topics_by_broker: dict[BrokerKey, dict[str, None]] = field(default_factory=dict)
    """Topics that have queues on each group, so that losing a broker does not walk all topics. Dictionaries of names
    to nothing, because the garbage collector does not look at these, and does at sets."""
    held_queue_table: dict[str, dict[BrokerKey, QueueData]] = field(default_factory=dict)
    """What brokers report of topics that operators hold back, by topic."""
    queue_datas: QueueDataTable = field(default_factory=QueueDataTable)


class TouchedTopic(NamedTuple):
    """A topic that an edit may change."""

    topic: str
    before: tuple[tuple[QueueData, WriteRule], ...]
    """Its queues before the edit, each with the rule of its group."""
    after: tuple[tuple[QueueData, WriteRule], ...]
    regrouped: bool
    """Whether one of its groups gets other addresses."""


class TableEdit:
    """Changes of several tables that belong together. Nothing shows until ``publish``."""

    def __init__(self, tables: Tables, behaviour: Behaviour, intents: IntentTable) -> None:
        """Starts without changes. The intents are those that shall hold afterwards."""
        self._tables = tables
        self._behaviour = behaviour
        self._intents = intents
        self._topics: dict[str, TopicQueues | None] = {}
        self._put: dict[BrokerKey, dict[str, QueueData]] = {}
        self._removed: dict[BrokerKey, tuple[dict[str, QueueData], RemovalReason]] = {}
        self._groups: dict[BrokerKey, BrokerData | None] = {}
        self._live: dict[LiveKey, BrokerLiveInfo | None] = {}
        self._filters: dict[LiveKey, tuple[str, ...]] = {}
        self._gained: dict[BrokerKey, dict[str, None]] = {}
        self._held: dict[tuple[str, BrokerKey], QueueData | None] = {}
        self._lost_held: dict[BrokerKey, dict[str, QueueData]] = {}
        self._reasons: dict[BrokerKey | LiveKey, RemovalReason] = {}
        self._came = 0
        self._went = 0
        self.topic_names_changed = False
        """After publication: whether a topic came or went."""

    # What the edit would leave

    def group(self, key: BrokerKey) -> BrokerData | None:
        """A broker group as this edit would leave it."""
        return self._groups[key] if key in self._groups else self._tables.broker_addr_table.get(key)

    def lost_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """The queues that this edit takes from a group, by topic."""
        return self._removed[broker][0] if broker in self._removed else {}

    def lost_held_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """What a group that goes has reported of topics that are held back, by topic."""
        return self._lost_held.get(broker, {})

    def put_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """The queues that this edit gives to a group or changes, by topic."""
        return self._put.get(broker, {})

    def touched_topics(self) -> Iterator[TouchedTopic | None]:
        """Every topic whose route this edit may change, with its queues before and after. Call ``prepare`` before.

        None stands for a topic that has been there already, so that whoever iterates can give way.
        """
        find, published = self._tables.queue_datas.by_fragment, self._tables.broker_addr_table
        regrouped = {
            key
            for key, group in self._groups.items()
            if group is not None and key in published and published[key].addrs != group.addrs
        }
        topics: Iterator[str] = itertools.chain(
            itertools.chain.from_iterable(self._put.values()),
            itertools.chain.from_iterable(queues for queues, _ in self._removed.values()),
            itertools.chain.from_iterable(self._tables.topics_by_broker.get(key, ()) for key in regrouped),
        )
        seen: set[str] = set()
        for topic in topics:
            if topic in seen:
                yield None
                continue
            seen.add(topic)
            before = tuple(map(find.__getitem__, self._tables.topic_queue_table.get(topic) or ()))
            after = tuple(map(find.__getitem__, self._queues_of(topic) or ()))
            yield TouchedTopic(
                topic,
                tuple((queue_data, published[queue_data.broker].write) for queue_data in before),
                tuple((queue_data, self._write_rule(queue_data.broker)) for queue_data in after),
                not regrouped.isdisjoint(queue_data.broker for queue_data in after),
            )

    # Changes

    def put_group(self, group: BrokerData) -> None:
        """Adds or replaces a broker group; its rule and fragments are made at publication."""
        self._groups[group.key] = group

    def put_live(self, live: BrokerLiveInfo) -> None:
        """Adds or replaces a row of the live table."""
        self._live[live.key] = live

    def put_filter_servers(self, key: LiveKey, filter_servers: tuple[str, ...]) -> None:
        """Replaces a broker's filter servers; an empty tuple removes them."""
        self._filters[key] = filter_servers

    def put_topics(self, broker: BrokerKey, configs: Iterable[TopicConfig]) -> Steps[set[str]]:
        """Gives a group the queues that the configurations say. Topics that are not named stay as they are.

        Returns:
            The topics named, if the group's other topics are to be dropped.
        """
        yield from self._drop_unused_queue_datas(broker)
        # This loop is the cost of a registration: it has no calls that it can do without.
        queue_datas, published = self._tables.queue_datas, self._tables.topic_queue_table.settled_rows()
        held = self._intents.holds_of(broker.cluster_name)
        interned, find = queue_datas.of_group(broker), queue_datas.by_fragment
        edited, edited_before = self._topics, bool(self._topics)
        changed: list[str] = []
        changed_to: list[QueueData] = []
        named: set[str] = set()
        came = 0
        keep_names = self._behaviour.delete_topic_with_broker_registration
        for count, (topic, numbers) in enumerate(configs, 1):
            queue_data = interned.get(numbers) or queue_datas.intern(broker, numbers)
            if count % SLICE == 0:
                yield
            if keep_names:
                named.add(topic)
            if held and topic in held:
                self._held[topic, broker] = queue_data
                continue
            before = edited[topic] if edited_before and topic in edited else published.get(topic)
            if before is None:
                after: TopicQueues = (queue_data.fragment,)
                if edited_before and topic in edited:
                    self._went -= 1
                else:
                    came += 1
            else:
                after = _with_queue_data(before, queue_data, find)
                if after is before:
                    continue
            edited[topic] = after
            changed.append(topic)
            changed_to.append(queue_data)
        self._came += came
        yield from self._note_put(broker, changed, changed_to)
        return named

    def remove_topics_but(self, broker: BrokerKey, kept: set[str]) -> Steps[None]:
        """Takes all topics but some from a group (RocketMQ: deleteTopicWithBrokerRegistration)."""
        dropped = self._tables.topics_by_broker.get(broker, {}).keys() - kept
        yield from self._remove_queues(broker, dropped, RemovalReason.NOT_IN_REGISTRATION)
        for topic, holders in self._tables.held_queue_table.items():
            if broker in holders and topic not in kept:
                self._held[topic, broker] = None

    def remove_topic(self, topic: str, cluster_name: str | None) -> int:
        """Takes a topic's queues from the groups of one cluster, or of all. Returns from how many groups."""
        find = self._tables.queue_datas.by_fragment
        owners = [find[fragment].broker for fragment in self._queues_of(topic) or ()]
        brokers = [broker for broker in owners if cluster_name in (None, broker.cluster_name)]
        for broker in brokers:
            for _ in self._remove_queues(broker, (topic,), RemovalReason.DELETED_BY_OPERATOR):
                raise AssertionError("one topic is one slice")
        return len(brokers)

    def hold_topic(self, topic: str, cluster_name: str | None) -> int:
        """Like ``remove_topic``, but keeps in mind what the brokers report of it."""
        find = self._tables.queue_datas.by_fragment
        for fragment in self._tables.topic_queue_table.get(topic) or ():
            queue_data = find[fragment]
            if cluster_name in (None, queue_data.broker.cluster_name):
                self._held[topic, queue_data.broker] = queue_data
        return self.remove_topic(topic, cluster_name)

    def release_topic(self, topic: str) -> Steps[int]:
        """Gives a topic back to the groups for which the intents do not hold it any more. Returns to how many."""
        restored = 0
        for broker, queue_data in self._tables.held_queue_table.get(topic, {}).items():
            released = (topic, broker) in self._held
            if not released and topic not in self._intents.holds_of(broker.cluster_name):
                yield from self.put_topics(broker, [(topic, queue_data.numbers)])
                self._held[topic, broker] = None
                restored += 1
        return restored

    def remove_live(self, live: BrokerLiveInfo, reason: RemovalReason) -> None:
        """Removes a broker's live row and filter servers; its place in the group is the caller's business."""
        self._live[live.key] = None
        self._filters[live.key] = ()
        self._reasons[live.key] = reason

    def remove_broker(self, live: BrokerLiveInfo, reason: RemovalReason) -> Steps[bool]:
        """Removes a broker from all tables; the last one of a group takes the group and its queues with it.

        Returns:
            Whether the group went.
        """
        self.remove_live(live, reason)
        group = self.group(live.broker)
        assert group is not None, "a live broker is always in its group"
        addrs = {broker_id: addr for broker_id, addr in group.addrs.items() if addr != live.broker_addr}
        if addrs:
            self.put_group(replace(group, addrs=addrs, unconfirmed=group.unconfirmed & addrs.keys()))
            return False
        self._groups[live.broker] = None
        self._reasons[live.broker] = reason
        topics = self._tables.topics_by_broker.get(live.broker, ())
        yield from self._remove_queues(live.broker, topics, RemovalReason.GROUP_GONE)
        lost_held = self._lost_held.setdefault(live.broker, {})
        for count, (topic, holders) in enumerate(self._tables.held_queue_table.items(), 1):
            if live.broker in holders:
                lost_held[topic] = holders[live.broker]
                self._held[topic, live.broker] = None
            if count % SLICE == 0:
                yield
        return True

    def prepare(self) -> Steps[None]:
        """Works out what the edit changes beyond what was asked: the queues of groups whose rule changes."""
        for key, group in self._groups.items():
            before = self._tables.broker_addr_table.get(key)
            if group is None or before is None or self._write_rule(key) is before.write:
                continue
            put = self._put.setdefault(key, {})
            gone = self.lost_queues(key)
            find = self._tables.queue_datas.by_fragment
            for count, topic in enumerate(self._tables.topics_by_broker.get(key, ()), 1):
                if topic not in gone and topic not in put:
                    queues = self._queues_of(topic) or ()
                    put[topic] = next(data for fragment in queues if (data := find[fragment]).broker == key)
                if count % SLICE == 0:
                    yield

    # Publication

    def publish(self) -> tuple[Row, ...]:
        """Makes the edit the tables' state; the topic table must be settled. Call ``prepare`` before.

        Returns:
            What changed that a reader can see; empty if nothing did.
        """
        rows: list[Row] = []
        self._publish_filters(rows)
        self._publish_groups(rows)
        self._publish_live(rows)
        self._publish_topics(rows)
        self._publish_held()
        return tuple(rows)

    def _publish_filters(self, rows: list[Row]) -> None:
        table = self._tables.filter_server_table
        for key, filter_servers in self._filters.items():
            if table.get(key, ()) == filter_servers:
                continue
            live = self._live.get(key) or self._tables.broker_live_table[key]
            rows.append(FilterServersPut(key, live.broker, filter_servers))
            table[key] = filter_servers
            if not filter_servers:
                del table[key]

    def _publish_groups(self, rows: list[Row]) -> None:
        tables = self._tables
        clusters_removed = self._publish_clusters(rows)
        for key, group in self._groups.items():
            before = tables.broker_addr_table.get(key)
            if group is None:
                if before is not None:
                    rows.append(GroupRemoved(before, self._reasons[key]))
                    del tables.broker_addr_table[key]
                    tables.queue_datas.set_rule(key, WriteRule.REPORTED)
                continue
            after = self._with_fragments(replace(group, write=self._write_rule(key)))
            tables.queue_datas.set_rule(key, after.write)
            tables.broker_addr_table[key] = after
            if before != after:
                rows.append(GroupPut(before, after))
        rows += clusters_removed

    def _publish_clusters(self, rows: list[Row]) -> list[ClusterRemoved]:
        """Publishes clusters that come; returns those that went, whose rows come after those of their groups.

        A cluster may lose its only group and get another in one edit: then it has neither come nor gone.
        """
        table = self._tables.cluster_addr_table
        before = {key.cluster_name: key.cluster_name in table for key in self._groups}
        for key, group in self._groups.items():
            names = table.setdefault(key.cluster_name, set())
            if group is None:
                names.discard(key.broker_name)
            else:
                names.add(key.broker_name)
        removed: list[ClusterRemoved] = []
        for cluster_name, was_there in before.items():
            names = table[cluster_name]
            if not names:
                del table[cluster_name]
            if names and not was_there:
                rows.append(ClusterPut(cluster_name, frozenset(names)))
            elif was_there and not names:
                reason = next(self._reasons[key] for key in self._groups if key.cluster_name == cluster_name)
                removed.append(ClusterRemoved(cluster_name, reason))
        return removed

    def _publish_live(self, rows: list[Row]) -> None:
        table = self._tables.broker_live_table
        for key, live in self._live.items():
            before = table.get(key)
            if live is not None:
                table[key] = live
                if before is None or not live.same_but_renewed(before):
                    rows.append(LivePut(live))
            elif before is not None:
                del table[key]
                rows.append(LiveRemoved(before, self._reasons[key]))

    def _publish_topics(self, rows: list[Row]) -> None:
        tables = self._tables
        for broker, (lost, reason) in self._removed.items():
            if lost:
                rows.append(QueuesRemoved(broker, lost, reason))
                self._publish_lost(broker, lost)
        for broker, put in self._put.items():
            rule = self._write_rule(broker)
            if put:
                rows.append(QueuesPut(broker, put, rule))
                tables.queue_datas.set_rule(broker, rule)
        for broker, gained in self._gained.items():
            known = tables.topics_by_broker.setdefault(broker, gained)
            smaller, larger = (known, gained) if len(known) < len(gained) else (gained, known)
            larger |= smaller
            tables.topics_by_broker[broker] = larger
        for broker, group in self._groups.items():
            if group is None:
                tables.topics_by_broker.pop(broker, None)
                tables.queue_datas.forget_group(broker)
        if self._topics:
            self.topic_names_changed = bool(self._came or self._went)
            tables.topic_queue_table.publish(self._topics, self._came, self._went)

    def _publish_lost(self, broker: BrokerKey, lost: Iterable[str]) -> None:
        if broker in self._groups and self._groups[broker] is None:
            return  # all of its topics go with the group
        topics = self._tables.topics_by_broker[broker]
        for topic in lost:
            topics.pop(topic, None)

    def _publish_held(self) -> None:
        table = self._tables.held_queue_table
        for (topic, broker), queue_data in self._held.items():
            holders = table.setdefault(topic, {})
            if queue_data is None:
                holders.pop(broker, None)
            else:
                holders[broker] = queue_data
            if not holders:
                del table[topic]

    # Details

    def _queues_of(self, topic: str) -> TopicQueues | None:
        """A topic's queues as this edit would leave them."""
        return self._topics[topic] if topic in self._topics else self._tables.topic_queue_table.get(topic)

    def _write_rule(self, key: BrokerKey) -> WriteRule:
        """The rule of a group as this edit would leave it: the operator's word, then a lost master."""
        match self._intents.of_group(key):
            case IntentKind.WIPE_WRITE_PERM:
                return WriteRule.WIPED
            case IntentKind.ADD_WRITE_PERM:
                return WriteRule.ADDED
        group = self.group(key)
        return WriteRule.WIPED if group is not None and self._is_acted_for(group) else WriteRule.REPORTED

    def _is_acted_for(self, group: BrokerData) -> bool:
        """Whether a slave stands in for the master."""
        enabled = self._behaviour.support_acting_master and bool(group.enable_acting_master)
        return enabled and MASTER_ID not in group.addrs

    def _note_put(self, broker: BrokerKey, topics: list[str], queue_datas: list[QueueData]) -> Steps[None]:
        put, gained = self._put.setdefault(broker, {}), self._gained.setdefault(broker, {})
        known = self._tables.topics_by_broker.get(broker, ())
        for start in range(0, len(topics), PUT_SLICE):
            some = slice(start, start + PUT_SLICE)
            put.update(zip(topics[some], queue_datas[some], strict=True))
            yield  # what grows in one slice is also resized in one: 3 ms each where there are 100,000 topics
            gained.update((topic, None) for topic in topics[some] if topic not in known)
            yield

    def _remove_queues(self, broker: BrokerKey, topics: Iterable[str], reason: RemovalReason) -> Steps[None]:
        lost, _ = self._removed.setdefault(broker, ({}, reason))
        find, published = self._tables.queue_datas.by_fragment, self._tables.topic_queue_table
        for count, topic in enumerate(topics, 1):
            queues, left = self._queues_of(topic) or (), []
            for fragment in queues:
                queue_data = find[fragment]
                if queue_data.broker == broker:
                    lost[topic] = queue_data
                else:
                    left.append(fragment)
            self._topics[topic] = tuple(left) or None
            if queues and not left:  # two holds that come together may take the same queues
                self._went += 1
                assert topic in published, "an edit takes queues before it gives some"
            if count % SLICE == 0:
                yield

    def _drop_unused_queue_datas(self, broker: BrokerKey) -> Steps[None]:
        tables = self._tables
        topics = tables.topics_by_broker.get(broker, {})
        if self._topics or not tables.queue_datas.is_crowded(broker, len(topics)):
            return
        find = tables.queue_datas.by_fragment
        used = [holders[broker] for holders in tables.held_queue_table.values() if broker in holders]
        for count, topic in enumerate(topics, 1):
            used += [data for fragment in tables.topic_queue_table[topic] if (data := find[fragment]).broker == broker]
            if count % SLICE == 0:
                yield
        tables.queue_datas.keep_only(broker, used)

    def _with_fragments(self, group: BrokerData) -> BrokerData:
        cluster_name = group.key.cluster_name
        filter_fragment = b"".join(
            fragments.filter_servers_fragment(cluster_name, addr, filter_servers)
            for addr in group.addrs.values()
            if (filter_servers := self._tables.filter_server_table.get(LiveKey(cluster_name, addr)))
        )
        acting_fragment = b""
        if self._is_acted_for(group) and group.write is not WriteRule.ADDED:
            acting_fragment = fragments.broker_data_fragment(_with_lowest_as_master(group))
        return replace(
            group,
            fragment=fragments.broker_data_fragment(group),
            filter_fragment=filter_fragment,
            acting_fragment=acting_fragment,
        )


def _with_lowest_as_master(group: BrokerData) -> BrokerData:
    """The group as readers of routes see it where its lowest slave stands in for the master."""
    shown = {broker_id: MASTER_ID if broker_id == group.min_id else broker_id for broker_id in group.addrs}
    return replace(
        group,
        addrs={shown[broker_id]: addr for broker_id, addr in group.addrs.items()},
        unconfirmed=frozenset(shown[broker_id] for broker_id in group.unconfirmed),
    )


def _with_queue_data(queues: TopicQueues, queue_data: QueueData, find: dict[bytes, QueueData]) -> TopicQueues:
    """The queues with one group's part added or replaced; the same tuple if that changes nothing."""
    fragment, broker = queue_data.fragment, queue_data.broker
    if fragment in queues:
        return queues
    for index, present in enumerate(queues):
        other = find[present].broker
        if other == broker:
            return (*queues[:index], fragment, *queues[index + 1 :])
        if other > broker:
            return (*queues[:index], fragment, *queues[index:])
    return (*queues, fragment)
