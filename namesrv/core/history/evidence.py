"""The evidence that explains a route: the tables as they are now, and the past in the change log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from groundwork.topic_rules import SYNC_MEMBER_TOPIC_PREFIX
from groundwork.wording import counted
from namesrv.core.history.wording import iso, named_brokers
from namesrv.core.records.changes import Change, GroupRemoved, LivePut, LiveRemoved, QueuesPut, QueuesRemoved, Row
from namesrv.core.records.intents import HoldKey, Intent
from namesrv.core.records.rows import MASTER_ID, BrokerData, BrokerKey, LiveKey, QueueData
from namesrv.core.routes.route_state import RouteState, Unconfirmed
from namesrv.core.slices import Sliced
from namesrv.core.tables.route_join import join_route

WALK_SLICE = 2_000
"""Changes and rows of the change log that are looked at before giving way: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    topic: str
    broker_name: str | None = None
    """Only groups of this name."""
    cluster_name: str | None = None
    """Only groups of this cluster."""
    zone_name: str | None = None
    """As a reader in this zone sees the route; None: as one that names no zone does."""

    def is_about(self, broker: BrokerKey) -> bool:
        """Whether a group is asked about."""
        return self.broker_name in (None, broker.broker_name) and self.cluster_name in (None, broker.cluster_name)


class GroupInTable(NamedTuple):
    """A group that has queues of the topic."""

    group: BrokerData
    queue_data: QueueData
    is_shown: bool
    """Whether the reader sees it; false for groups of other zones."""
    unconfirmed: Mapping[LiveKey, Unconfirmed]


class Present:
    """What the tables say of the topic. Making it is one step, about as long as a lookup of the topic."""

    def __init__(self, state: RouteState, started_at_millis: int, question: Question) -> None:
        tables = state.tables
        topic, zone_name = question.topic, question.zone_name
        self.question = question
        self.started_at = iso(started_at_millis)
        self.groups = dict(tables.broker_addr_table)
        self.intents = state.intents.intents
        self.compacted_revision = state.change_log.compacted_revision
        held = tables.held_queue_table.get(topic, {})
        self.held = {broker: queue_data for broker, queue_data in held.items() if question.is_about(broker)}
        self.in_table: dict[BrokerKey, GroupInTable] = {}
        self._topics_by_broker = tables.topics_by_broker
        for fragment in tables.topic_queue_table.get(topic) or ():
            queue_data = tables.queue_datas.by_fragment[fragment]
            broker = queue_data.broker
            if question.is_about(broker):
                group = self.groups[broker]
                # The route of this group alone is empty where the zone leaves the group out.
                is_shown = zone_name is None or bool(join_route(tables, topic, (fragment,), zone_name))
                keys = (LiveKey(broker.cluster_name, group.addrs[broker_id]) for broker_id in group.unconfirmed)
                unconfirmed = {key: state.unconfirmed[key] for key in keys}
                self.in_table[broker] = GroupInTable(group, queue_data, is_shown, unconfirmed)

    def hold_on(self, broker: BrokerKey) -> Intent | None:
        """What holds the topic back on a group."""
        topic = self.question.topic
        return self.intents.get(HoldKey(topic, None)) or self.intents.get(HoldKey(topic, broker.cluster_name))

    def topic_count(self, broker: BrokerKey) -> str:
        """Topics that a group has."""
        return counted(len(self._topics_by_broker.get(broker, ())), "topic")

    def acting_master(self, group: BrokerData) -> str | None:
        """The slave that readers of this route see as the master; None if there is none."""
        if not group.acting_fragment or self.question.topic.startswith(SYNC_MEMBER_TOPIC_PREFIX):
            return None
        return named_brokers({group.min_id: group.addrs[group.min_id]})


@dataclass(slots=True)
class Past:
    """What the change log knows of the groups that are asked about: the newest change of each kind."""

    question: Question
    queues: dict[BrokerKey, tuple[Change, QueuesPut | QueuesRemoved]] = field(default_factory=dict)
    """When a group got, changed or lost its queues of the topic."""
    left: dict[BrokerKey, tuple[Change, GroupRemoved]] = field(default_factory=dict)
    """When a group went, whether it had the topic or not."""
    master_left: dict[BrokerKey, Change] = field(default_factory=dict)
    unconfirmed: dict[LiveKey, Change] = field(default_factory=dict)
    """When a broker was kept as unconfirmed."""

    def walk(self, newest_first: list[Change], now: Present) -> Sliced[None]:
        """Reads changes until everything is known. If not one group is asked for, any change may name another."""
        count = 0
        for change in newest_first:
            for row in reversed(change.rows):
                self._note(change, row)
                count += 1
                if count % WALK_SLICE == 0:
                    yield
            if self._is_complete(now):
                return
            count += 1
            if count % WALK_SLICE == 0:
                yield

    def _note(self, change: Change, row: Row) -> None:
        match row:
            case QueuesPut() if self.question.topic in row.queues and self.question.is_about(row.broker):
                self.queues.setdefault(row.broker, (change, row))
            case QueuesRemoved() if self.question.topic in row.topics and self.question.is_about(row.broker):
                self.queues.setdefault(row.broker, (change, row))
            case GroupRemoved() if self.question.is_about(row.before.key):
                self.left.setdefault(row.before.key, (change, row))
            case LiveRemoved() if row.live.broker_id == MASTER_ID and self.question.is_about(row.live.broker):
                self.master_left.setdefault(row.live.broker, change)
            case LivePut() if row.live.unconfirmed and self.question.is_about(row.live.broker):
                self.unconfirmed.setdefault(row.live.key, change)

    def _is_complete(self, now: Present) -> bool:
        cluster_name, broker_name = self.question.cluster_name, self.question.broker_name
        if cluster_name is None or broker_name is None:
            return False
        broker = BrokerKey(cluster_name, broker_name)
        if broker not in self.queues:
            return False
        if broker not in now.in_table:
            return True
        group, _, _, unconfirmed = now.in_table[broker]
        guarded = {key for key, why in unconfirmed.items() if why is Unconfirmed.GUARD}
        return (MASTER_ID in group.addrs or broker in self.master_left) and guarded <= self.unconfirmed.keys()
