"""A reader of the change log that keeps tables of its own, as dictionaries of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from namesrv.core.changes import (
    Change,
    ClusterPut,
    ClusterRemoved,
    ConfigPut,
    FilterServersPut,
    GroupPut,
    GroupRemoved,
    IntentLifted,
    IntentPut,
    KvPut,
    LivePut,
    LiveRemoved,
    QueuesPut,
    QueuesRemoved,
    Row,
)
from namesrv.core.model import BrokerData, BrokerKey, BrokerLiveInfo, HoldKey, Intent, IntentKey, LiveKey
from namesrv.core.state import RouteState


@dataclass
class ReaderTables:
    """Rows by their keys."""

    topics: dict[tuple[str, BrokerKey], bytes] = field(default_factory=dict)
    """Queues as they are in force, encoded."""
    groups: dict[BrokerKey, BrokerData] = field(default_factory=dict)
    live: dict[LiveKey, BrokerLiveInfo] = field(default_factory=dict)
    """Without channel and generation, whose changes take no revision."""
    clusters: set[str] = field(default_factory=set)
    filter_servers: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    intents: dict[IntentKey, Intent] = field(default_factory=dict)
    kv: dict[tuple[str, str], str] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Applies a change's rows in their order. What is removed must be there."""
        for row in change.rows:
            match row:
                case QueuesPut() | QueuesRemoved() | FilterServersPut():
                    self._apply_queues(row)
                case GroupPut() | GroupRemoved() | LivePut() | LiveRemoved() | ClusterPut() | ClusterRemoved():
                    self._apply_brokers(row)
                case _:
                    self._apply_intent(row)

    def _apply_queues(self, row: QueuesPut | QueuesRemoved | FilterServersPut) -> None:
        match row:
            case QueuesPut():
                for topic, data in row.queues.items():
                    self.topics[topic, row.broker] = data.fragment_under(row.write)
            case QueuesRemoved():
                for topic in row.topics:
                    del self.topics[topic, row.broker]
            case FilterServersPut():
                self.filter_servers[row.key] = row.filter_servers
                if not row.filter_servers:
                    del self.filter_servers[row.key]

    def _apply_brokers(
        self, row: GroupPut | GroupRemoved | LivePut | LiveRemoved | ClusterPut | ClusterRemoved
    ) -> None:
        match row:
            case GroupPut():
                assert row.before == self.groups.get(row.after.key)
                self.groups[row.after.key] = row.after
            case GroupRemoved():
                assert row.before == self.groups.pop(row.before.key)
            case LivePut():
                self.live[row.live.key] = _as_read(row.live)
            case LiveRemoved():
                assert _as_read(row.live) == self.live.pop(row.live.key)
            case ClusterPut():
                assert row.cluster_name not in self.clusters
                self.clusters.add(row.cluster_name)
            case ClusterRemoved():
                self.clusters.remove(row.cluster_name)

    def _apply_intent(self, row: Row) -> None:
        """Of an operator."""
        match row:
            case KvPut(namespace, key, None):
                del self.kv[namespace, key]
            case KvPut(namespace, key, str(value)):
                self.kv[namespace, key] = value
            case IntentPut(intent):
                self.intents[intent.key] = intent
            case IntentLifted(intent):
                assert self.intents.pop(intent.key) == intent
            case _:
                assert isinstance(row, ConfigPut), "belongs to no table"


REMOVALS = frozenset({"UNREGISTERED gone", "CHANNEL_CLOSED gone", "EXPIRED gone", "REPLACED gone"})
"""Why brokers go that no operator has confirmed as lost."""
LOST_QUEUES = frozenset({"GROUP_GONE lost", "NOT_IN_REGISTRATION lost", "DELETED_BY_OPERATOR lost"})
"""Why groups lose queues."""
GUARDED = frozenset({"held by the guard", "brought back by the guard"})
BY_OPERATORS = frozenset({"hold", "hold lifted", "permission", "permission lifted"})


def outcomes_of(change: Change, before: ReaderTables) -> Iterator[str]:
    """What a change means that tables before it get."""
    for row in change.rows:
        match row:
            case LiveRemoved():
                yield f"{row.reason.name} gone"
            case QueuesRemoved():
                yield f"{row.reason.name} lost"
            case LivePut(live) if live.unconfirmed:
                yield "held by the guard" if live.key in before.live else "brought back by the guard"
            case IntentPut(intent):
                yield "hold" if isinstance(intent.key, HoldKey) else "permission"
            case IntentLifted(intent):
                yield "hold lifted" if isinstance(intent.key, HoldKey) else "permission lifted"
            case _:
                pass


def tables_of(state: RouteState) -> ReaderTables:
    """The tables as a reader of the whole log must have them."""
    tables = state.tables
    in_force = tables.queue_datas.in_force
    return ReaderTables(
        topics={
            (topic, tables.queue_datas.of(fragment).broker): in_force.get(fragment, fragment)
            for topic, fragments in tables.topic_queue_table.rows()
            for fragment in fragments
        },
        groups=dict(tables.broker_addr_table),
        live={key: _as_read(live) for key, live in tables.broker_live_table.items()},
        clusters=set(tables.cluster_addr_table),
        filter_servers=dict(tables.filter_server_table),
        intents=dict(state.intents.intents),
        kv={
            (namespace, key): value
            for namespace, entries in state.kv_config.namespaces.items()
            for key, value in entries.items()
        },
    )


def _as_read(live: BrokerLiveInfo) -> BrokerLiveInfo:
    return replace(live, channel_id=None, generation=0)
