"""The tables, and how they change: an edit is prepared aside, in slices, and published in one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from namesrv.core import fragments
from namesrv.core.records import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    QueueNumbers,
    TopicConfig,
    TopicQueues,
)
from namesrv.core.steps import Steps

SLICE = 300
"""Topics that are worked on before giving way: about a millisecond, reading them from the request included."""

MAX_INTERNED_PER_BROKER = 4_096
"""Distinct QueueData kept for sharing by one broker group. A broker that cycles through permissions and queue counts
must not grow memory; past this the group starts afresh, which costs sharing and nothing else."""


@dataclass(slots=True)
class Tables:
    """The five tables of RocketMQ's RouteInfoManager, and two indexes into them."""

    topic_queue_table: dict[str, TopicQueues] = field(default_factory=dict)
    broker_addr_table: dict[BrokerKey, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)
    broker_live_table: dict[LiveKey, BrokerLiveInfo] = field(default_factory=dict)
    filter_server_table: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    topics_by_broker: dict[BrokerKey, set[str]] = field(default_factory=dict)
    """Topics that have queues on each group, so that losing a broker does not walk all topics."""
    interned_queue_data: dict[BrokerKey, dict[QueueNumbers, QueueData]] = field(default_factory=dict)


class TableEdit:
    """Changes of several tables that belong together. Nothing shows until ``publish``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._topics: dict[str, TopicQueues] = {}
        self._topics_gone: set[str] = set()
        self._groups: dict[BrokerKey, BrokerData | None] = {}
        self._live: dict[LiveKey, BrokerLiveInfo | None] = {}
        self._filters: dict[LiveKey, tuple[str, ...] | None] = {}
        self._topics_gained: dict[BrokerKey, set[str]] = {}
        self.topic_names_changed = False
        """After publication: whether a topic came or went."""

    @property
    def topics_removed(self) -> int:
        """Topics that this edit takes the last queues from."""
        return len(self._topics_gone)

    def group(self, key: BrokerKey) -> BrokerData | None:
        """A broker group as this edit would leave it."""
        return self._groups[key] if key in self._groups else self._tables.broker_addr_table.get(key)

    def put_group(self, group: BrokerData) -> None:
        """Adds or replaces a broker group; its fragments are made at publication."""
        self._groups[group.key] = group

    def put_live(self, live: BrokerLiveInfo) -> None:
        """Adds or replaces a row of the live table."""
        self._live[live.key] = live

    def put_filter_servers(self, key: LiveKey, filter_servers: tuple[str, ...]) -> None:
        """Replaces a broker's filter servers; an empty tuple removes them."""
        self._filters[key] = filter_servers or None

    def put_topics(self, broker: BrokerKey, configs: Iterable[TopicConfig]) -> Steps[None]:
        """Gives a group the queues that the configurations say. Topics that are not named stay as they are."""
        # This loop is the cost of a registration: it has no calls that it can do without.
        known = self._tables.topics_by_broker.get(broker, ())
        gained = self._topics_gained.setdefault(broker, set())
        interned = self._tables.interned_queue_data.setdefault(broker, {})
        published, edited, gone = self._tables.topic_queue_table, self._topics, self._topics_gone
        for count, (topic, numbers) in enumerate(configs, 1):
            queue_data = interned.get(numbers) or _intern(interned, broker, numbers)
            before = edited.get(topic)
            if before is None and topic not in gone:
                before = published.get(topic)
            after = (queue_data,) if before is None else _with_queue_data(before, queue_data)
            if after is not before:
                edited[topic] = after
                gone.discard(topic)
            if topic not in known:
                gained.add(topic)
            if count % SLICE == 0:
                yield

    def remove_live(self, live: BrokerLiveInfo) -> None:
        """Removes a broker's live row and filter servers; its place in the group is the caller's business."""
        self._live[live.key] = None
        self._filters[live.key] = None

    def remove_broker(self, live: BrokerLiveInfo) -> Steps[bool]:
        """Removes a broker from all tables; the last one of a group takes the group and its queues with it.

        Returns:
            Whether the group went.
        """
        self.remove_live(live)
        group = self.group(live.broker)
        assert group is not None, "a live broker is always in its group"
        addrs = {broker_id: addr for broker_id, addr in group.addrs.items() if addr != live.broker_addr}
        if addrs:
            self.put_group(replace(group, addrs=addrs))
            return False
        self._groups[live.broker] = None
        for count, topic in enumerate(self._tables.topics_by_broker.get(live.broker, ()), 1):
            queues = self._topics.get(topic) or self._tables.topic_queue_table[topic]
            left = tuple(queue for queue in queues if queue.broker != live.broker)
            if left:
                self._topics[topic] = left
            else:
                self._topics_gone.add(topic)
            if count % SLICE == 0:
                yield
        return True

    def publish(self) -> bool:
        """Makes the edit the tables' state.

        Returns:
            Whether anything changed that a reader of routes can see. Only that takes a revision.
        """
        visible = self._publish_filters()
        visible |= self._publish_groups()
        visible |= self._publish_live()
        visible |= bool(self._topics or self._topics_gone)
        self._publish_topics()
        return visible

    def _publish_filters(self) -> bool:
        table = self._tables.filter_server_table
        visible = False
        for key, filter_servers in self._filters.items():
            visible |= table.get(key) != filter_servers
            if filter_servers is None:
                table.pop(key, None)
            else:
                table[key] = filter_servers
        return visible

    def _publish_groups(self) -> bool:
        table = self._tables.broker_addr_table
        visible = False
        for key, group in self._groups.items():
            if group is None:
                visible = True
                del table[key]
                self._tables.topics_by_broker.pop(key, None)
                self._tables.interned_queue_data.pop(key, None)
                names = self._tables.cluster_addr_table[key.cluster_name]
                names.discard(key.broker_name)
                if not names:
                    del self._tables.cluster_addr_table[key.cluster_name]
                continue
            visible |= table.get(key) != group
            table[key] = self._with_fragments(group)
            self._tables.cluster_addr_table.setdefault(key.cluster_name, set()).add(key.broker_name)
        return visible

    def _publish_live(self) -> bool:
        table = self._tables.broker_live_table
        visible = False
        for key, live in self._live.items():
            before = table.get(key)
            if live is None:
                visible |= before is not None
                table.pop(key, None)
            else:
                visible |= before is None or not live.same_but_renewed(before)
                table[key] = live
        return visible

    def _publish_topics(self) -> None:
        table = self._tables.topic_queue_table
        for broker, gained in self._topics_gained.items():
            known = self._tables.topics_by_broker.get(broker)
            if known:
                known.update(gained)
            else:
                self._tables.topics_by_broker[broker] = gained
        count_before = len(table)
        table.update(self._topics)
        self.topic_names_changed = bool(self._topics_gone) or len(table) != count_before
        for topic in self._topics_gone:
            del table[topic]

    def _with_fragments(self, group: BrokerData) -> BrokerData:
        cluster_name = group.key.cluster_name
        filter_fragment = b"".join(
            fragments.filter_servers_fragment(cluster_name, addr, filter_servers)
            for addr in group.addrs.values()
            if (filter_servers := self._tables.filter_server_table.get(LiveKey(cluster_name, addr)))
        )
        fragment = fragments.broker_data_fragment(group.key, group.addrs, group.zone_name, group.enable_acting_master)
        return replace(group, fragment=fragment, filter_fragment=filter_fragment)


def _intern(interned: dict[QueueNumbers, QueueData], broker: BrokerKey, numbers: QueueNumbers) -> QueueData:
    if len(interned) >= MAX_INTERNED_PER_BROKER:
        interned.clear()
    queue_data = QueueData(broker, *numbers, fragment=fragments.queue_data_fragment(broker, *numbers))
    interned[numbers] = queue_data
    return queue_data


def _with_queue_data(queues: TopicQueues, queue_data: QueueData) -> TopicQueues:
    """The queues with one group's part added or replaced; the same tuple if that changes nothing."""
    for index, present in enumerate(queues):
        if present is queue_data:
            return queues
        if present.broker == queue_data.broker:
            if present == queue_data:
                return queues
            return (*queues[:index], queue_data, *queues[index + 1 :])
        if present.broker > queue_data.broker:
            return (*queues[:index], queue_data, *queues[index:])
    return (*queues, queue_data)
