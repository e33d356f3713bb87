"""An edit of the tables: prepared aside, in slices, and published in one step."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from namesrv.core.records.fragments import MAPPED_SLICE
from namesrv.core.records.rows import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    RemovalReason,
    ReportedQueues,
    ReportedTopic,
    StaticMapping,
    TopicQueues,
)
from namesrv.core.slices import Sliced
from namesrv.core.tables.edit_state import EditState
from namesrv.core.tables.topics import SHARD_MASK

SLICE = 80
"""Topics that are worked on before giving way: a sixth of a millisecond."""

_NARROW = 8
"""Most groups of a topic among which walking is the quickest way to find one."""

PUT_SLICE = 1_250
"""Topics that are noted as changed before giving way: less than a third of a millisecond."""


class TableEdit(EditState):
    """Changes of several tables that belong together. Nothing shows until ``publish_edit``."""

    def put_group(self, group: BrokerData) -> None:
        """Adds or replaces a broker group; its rule and fragments are made at publication."""
        self.groups[group.key] = group

    def put_live(self, live: BrokerLiveInfo) -> None:
        """Adds or replaces a row of the live table."""
        self.live[live.key] = live

    def put_filter_servers(self, key: LiveKey, filter_servers: tuple[str, ...]) -> None:
        """Replaces a broker's filter servers; an empty tuple removes them."""
        self.filters[key] = filter_servers

    def put_topics(self, broker: BrokerKey, configs: Iterable[ReportedTopic]) -> Sliced[None]:
        """Gives a group the queues that the configurations say. Topics that are not named stay as they are."""
        yield from self._drop_unused_queue_datas(broker)
        # This loop is the cost of a registration, so it makes no call that it can do without.
        queue_datas, shards = self.tables.queue_datas, self.tables.topic_queue_table.settled_shards()
        held = self.intents.holds_of(broker.cluster_name)
        interned, find = queue_datas.of_group(broker), queue_datas.by_fragment
        edited, edited_before = self.topics, bool(self.topics)
        changed: list[str] = []
        changed_to: list[QueueData] = []
        came = mapped = 0
        for count, (topic, reported) in enumerate(configs, 1):
            queue_data = interned.get(reported)
            if queue_data is None:
                queue_data = yield from queue_datas.added(broker, reported)
            if queue_data.mapping is not None:
                mapped += len(queue_data.mapping.queue_ids)
                if mapped > MAPPED_SLICE:
                    mapped = 0
                    yield
            if count % SLICE == 0:
                yield
            if held and topic in held:
                self.held[topic, broker] = queue_data
                continue
            shard = edited if edited_before and topic in edited else shards[hash(topic) & SHARD_MASK]
            before = shard.get(topic)
            if before is None:
                after: TopicQueues = (queue_data.fragment,)
                if edited_before and topic in edited:
                    self.went -= 1
                else:
                    came += 1
            else:
                after = _with_queue_data(before, queue_data, find)
                if after is before:
                    continue
            edited[topic] = after
            changed.append(topic)
            changed_to.append(queue_data)
        self.came += came
        yield from self._note_put(broker, changed, changed_to)

    def with_mappings(
        self, broker: BrokerKey, configs: Mapping[str, ReportedQueues], mappings: Mapping[str, StaticMapping]
    ) -> Sliced[Mapping[str, ReportedQueues]]:
        """Configurations with the mappings of static topics, new ones or those that the group has reported before.

        A mapping may come without its topic's configuration, which then came before it; if it did not, it is dropped.
        """
        if not mappings and broker not in self.tables.queue_datas.mapped:
            return configs
        found: dict[str, ReportedQueues] = {}
        for count, topic in enumerate(itertools.chain(configs, mappings.keys() - configs.keys()), 1):
            if count % SLICE == 0:
                yield
            numbers, mapping = configs.get(topic), mappings.get(topic)
            if numbers is None or mapping is None:
                present = self._reported_by(broker, topic)
                if present is not None:
                    numbers, mapping = numbers or present.numbers, mapping or present.mapping
            if numbers is not None:
                found[topic] = numbers if mapping is None else (*numbers[:4], mapping)
        return found

    def remove_topics_but(self, broker: BrokerKey, kept: AbstractSet[str]) -> Sliced[None]:
        """Takes all topics but some from a group (RocketMQ: deleteTopicWithBrokerRegistration)."""
        dropped = self.tables.topics_by_broker.get(broker, {}).keys() - kept
        yield from self.remove_queues(broker, dropped, RemovalReason.NOT_IN_REGISTRATION)
        for topic, holders in self.tables.held_queue_table.items():
            if broker in holders and topic not in kept:
                self.held[topic, broker] = None

    def remove_topic(self, topic: str, cluster_name: str | None) -> int:
        """Takes a topic's queues from the groups of one cluster, or of all. Returns from how many groups."""
        find = self.tables.queue_datas.by_fragment
        owners = [find[fragment].broker for fragment in self.queues_of(topic) or ()]
        brokers = [broker for broker in owners if cluster_name in (None, broker.cluster_name)]
        for broker in brokers:
            for _ in self.remove_queues(broker, (topic,), RemovalReason.DELETED_BY_OPERATOR):
                raise AssertionError("one topic is one slice")
        return len(brokers)

    def hold_topic(self, topic: str, cluster_name: str | None) -> int:
        """Like ``remove_topic``, but remembers what the brokers report of it."""
        find = self.tables.queue_datas.by_fragment
        for fragment in self.tables.topic_queue_table.get(topic) or ():
            queue_data = find[fragment]
            if cluster_name in (None, queue_data.broker.cluster_name):
                self.held[topic, queue_data.broker] = queue_data
        return self.remove_topic(topic, cluster_name)

    def release_topic(self, topic: str) -> Sliced[int]:
        """Gives a topic back to the groups for which the intents do not hold it any more. Returns to how many."""
        restored = 0
        for broker, queue_data in self.tables.held_queue_table.get(topic, {}).items():
            released = (topic, broker) in self.held
            if not released and topic not in self.intents.holds_of(broker.cluster_name):
                yield from self.put_topics(broker, [(topic, queue_data.reported)])
                self.held[topic, broker] = None
                restored += 1
        return restored

    def remove_queues(self, broker: BrokerKey, topics: Iterable[str], reason: RemovalReason) -> Sliced[None]:
        """Takes topics from a group, which has queues of them."""
        lost, _ = self.removed.setdefault(broker, ({}, reason))
        find, published = self.tables.queue_datas.by_fragment, self.tables.topic_queue_table
        for count, topic in enumerate(topics, 1):
            queues, left = self.queues_of(topic) or (), []
            for fragment in queues:
                queue_data = find[fragment]
                if queue_data.broker == broker:
                    lost[topic] = queue_data
                else:
                    left.append(fragment)
            self.topics[topic] = tuple(left) or None
            if queues and not left:  # two holds that come together may take the same queues
                self.went += 1
                assert topic in published, "an edit takes queues before it gives some"
            if count % SLICE == 0:
                yield

    def remove_live(self, live: BrokerLiveInfo, reason: RemovalReason) -> None:
        """Removes a broker's live row and filter servers; the caller takes care of its place in the group."""
        self.live[live.key] = None
        self.filters[live.key] = ()
        self.reasons[live.key] = reason

    def remove_broker(self, live: BrokerLiveInfo, reason: RemovalReason) -> Sliced[bool]:
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
        yield from self.remove_group(live.broker, reason)
        return True

    def remove_group(self, broker: BrokerKey, reason: RemovalReason) -> Sliced[None]:
        """Removes a group whose last broker goes, with its queues and what it reported of held topics."""
        self.groups[broker] = None
        self.reasons[broker] = reason
        topics = self.tables.topics_by_broker.get(broker, ())
        yield from self.remove_queues(broker, topics, RemovalReason.GROUP_GONE)
        lost_held = self.lost_held.setdefault(broker, {})
        for count, (topic, holders) in enumerate(self.tables.held_queue_table.items(), 1):
            if broker in holders:
                lost_held[topic] = holders[broker]
                self.held[topic, broker] = None
            if count % SLICE == 0:
                yield

    def prepare(self) -> Sliced[None]:
        """Works out what the edit changes beyond what was asked: the queues of groups whose rule changes."""
        for key, group in self.groups.items():
            before = self.tables.broker_addr_table.get(key)
            if group is None or before is None or self.write_rule(key) is before.write:
                continue
            put = self.put.setdefault(key, {})
            gone = self.lost_queues(key)
            find = self.tables.queue_datas.by_fragment
            for count, topic in enumerate(self.tables.topics_by_broker.get(key, ()), 1):
                if topic not in gone and topic not in put:
                    queues = self.queues_of(topic) or ()
                    put[topic] = next(data for fragment in queues if (data := find[fragment]).broker == key)
                if count % SLICE == 0:
                    yield

    # Details

    def _reported_by(self, broker: BrokerKey, topic: str) -> QueueData | None:
        """What a group reports of a topic, held or not."""
        held = self.tables.held_queue_table.get(topic)
        if held and broker in held:
            return held[broker]
        find = self.tables.queue_datas.by_fragment
        queues = self.queues_of(topic) or ()
        index = bisect_left(queues, broker, key=lambda present: find[present].broker)
        queue_data = find[queues[index]] if index < len(queues) else None
        return queue_data if queue_data is not None and queue_data.broker == broker else None

    def _note_put(self, broker: BrokerKey, topics: list[str], queue_datas: list[QueueData]) -> Sliced[None]:
        put, gained = self.put.setdefault(broker, {}), self.gained.setdefault(broker, {})
        known = self.tables.topics_by_broker.get(broker, ())
        are_many = len(topics) > SLICE
        for start in range(0, len(topics), PUT_SLICE):
            some = slice(start, start + PUT_SLICE)
            put.update(zip(topics[some], queue_datas[some], strict=True))
            if are_many:
                yield  # a dictionary that grows in one slice is resized in it, too: 3 ms each with 100,000 topics
            gained.update((topic, None) for topic in topics[some] if topic not in known)
            if are_many:
                yield

    def _drop_unused_queue_datas(self, broker: BrokerKey) -> Sliced[None]:
        tables = self.tables
        topics = tables.topics_by_broker.get(broker, {})
        if self.topics or not tables.queue_datas.is_crowded(broker, len(topics)):
            return
        find = tables.queue_datas.by_fragment
        used = [holders[broker] for holders in tables.held_queue_table.values() if broker in holders]
        for count, topic in enumerate(topics, 1):
            used += [data for fragment in tables.topic_queue_table[topic] if (data := find[fragment]).broker == broker]
            if count % SLICE == 0:
                yield
        tables.queue_datas.keep_only(broker, used)


def _with_queue_data(queues: TopicQueues, queue_data: QueueData, find: dict[bytes, QueueData]) -> TopicQueues:
    """The queues with one group's part added or replaced; the same tuple if that changes nothing."""
    if len(queues) > _NARROW:
        return _with_queue_data_among_many(queues, queue_data, find)
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


def _with_queue_data_among_many(
    queues: TopicQueues, queue_data: QueueData, find: dict[bytes, QueueData]
) -> TopicQueues:
    """The same for topics of hundreds of groups, of which a registration may have ten thousand."""
    fragment, broker = queue_data.fragment, queue_data.broker
    index = bisect_left(queues, broker, key=lambda present: find[present].broker)
    if index == len(queues) or find[queues[index]].broker != broker:
        return (*queues[:index], fragment, *queues[index:])
    if queues[index] == fragment:
        return queues
    return (*queues[:index], fragment, *queues[index + 1 :])
