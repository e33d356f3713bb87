"""The state of an edit so far, and the tables that it would leave."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from namesrv.core.behaviour import Behaviour
from namesrv.core.records.intents import IntentKind, IntentTable
from namesrv.core.records.rows import (
    MASTER_ID,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    RemovalReason,
    TopicQueues,
    WriteRule,
)
from namesrv.core.tables.schema import Tables


class TouchedTopic(NamedTuple):
    """A topic that an edit may change."""

    topic: str
    before: tuple[tuple[QueueData, WriteRule], ...]
    """Its queues before the edit, each with the rule of its group."""
    after: tuple[tuple[QueueData, WriteRule], ...]
    regrouped: bool
    """Whether one of its groups gets other addresses."""


class EditState:
    """Changes that are not visible yet. Its attributes are for the modules that make and publish edits."""

    def __init__(self, tables: Tables, behaviour: Behaviour, intents: IntentTable) -> None:
        """Starts without changes. The intents are those that shall hold afterwards."""
        self.tables = tables
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
        self.lost_held: dict[BrokerKey, dict[str, QueueData]] = {}
        self.reasons: dict[BrokerKey | LiveKey, RemovalReason] = {}
        self.came = 0
        self.went = 0
        self.topic_names_changed = False
        """After publication: whether a topic came or went."""

    def group(self, key: BrokerKey) -> BrokerData | None:
        """A broker group as this edit would leave it."""
        return self.groups[key] if key in self.groups else self.tables.broker_addr_table.get(key)

    def lost_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """The queues that this edit takes from a group, by topic."""
        return self.removed[broker][0] if broker in self.removed else {}

    def lost_held_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """What a group that goes has reported of topics that are held back, by topic."""
        return self.lost_held.get(broker, {})

    def put_queues(self, broker: BrokerKey) -> dict[str, QueueData]:
        """The queues that this edit gives to a group or changes, by topic."""
        return self.put.get(broker, {})

    def touched_topics(self) -> Iterator[TouchedTopic | None]:
        """Every topic whose route this edit may change, with its queues before and after. Call ``prepare`` before.

        None stands for a topic that has come already, so that the iterating code can give way.
        """
        find, published = self.tables.queue_datas.by_fragment, self.tables.broker_addr_table
        regrouped = {
            key
            for key, group in self.groups.items()
            if group is not None and key in published and published[key].addrs != group.addrs
        }
        topics: Iterator[str] = itertools.chain(
            itertools.chain.from_iterable(self.put.values()),
            itertools.chain.from_iterable(queues for queues, _ in self.removed.values()),
            itertools.chain.from_iterable(self.tables.topics_by_broker.get(key, ()) for key in regrouped),
        )
        seen: set[str] = set()
        for topic in topics:
            if topic in seen:
                yield None
                continue
            seen.add(topic)
            before = tuple(map(find.__getitem__, self.tables.topic_queue_table.get(topic) or ()))
            after = tuple(map(find.__getitem__, self.queues_of(topic) or ()))
            yield TouchedTopic(
                topic,
                tuple((queue_data, published[queue_data.broker].write) for queue_data in before),
                tuple((queue_data, self.write_rule(queue_data.broker)) for queue_data in after),
                not regrouped.isdisjoint(queue_data.broker for queue_data in after),
            )

    def queues_of(self, topic: str) -> TopicQueues | None:
        """A topic's queues as this edit would leave them."""
        return self.topics[topic] if topic in self.topics else self.tables.topic_queue_table.get(topic)

    def write_rule(self, key: BrokerKey) -> WriteRule:
        """The rule of a group as this edit would leave it. An operator's intent decides first, then a lost master."""
        match self.intents.of_group(key):
            case IntentKind.WIPE_WRITE_PERM:
                return WriteRule.WIPED
            case IntentKind.ADD_WRITE_PERM:
                return WriteRule.ADDED
        group = self.group(key)
        return WriteRule.WIPED if group is not None and self.is_acted_for(group) else WriteRule.REPORTED

    def is_acted_for(self, group: BrokerData) -> bool:
        """Whether a slave stands in for the master."""
        enabled = self.behaviour.support_acting_master and bool(group.enable_acting_master)
        return enabled and MASTER_ID not in group.addrs

    def is_shown_acted_for(self, group: BrokerData, write: WriteRule) -> bool:
        """Whether routes show the slave that stands in for the master."""
        return self.is_acted_for(group) and write is not WriteRule.ADDED

    def is_shown_alike(self, group: BrokerData) -> bool:
        """Whether a published group would be published as it is: intents and settings have the same come of it."""
        write = self.write_rule(group.key)
        return group.write is write and bool(group.acting_fragment) is self.is_shown_acted_for(group, write)
