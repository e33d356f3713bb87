"""A reader of the change log that keeps tables of its own, as dictionaries of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from namesrv.core.changes import (
    Change,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    IntentChange,
    KvChange,
    LiveChange,
    QueuesChange,
    Row,
    RowChange,
    SettingChange,
)
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    HoldKey,
    Intent,
    IntentKey,
    LiveKey,
    RemovalReason,
    WriteRule,
)
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
                case QueuesChange():
                    assert (row.before is None) is (row.reason is None) is not (row.after is None)
                    for topic, data in (row.after or {}).items():
                        self.topics[topic, row.key] = data.fragment_under(row.write)
                    for topic, data in (row.before or {}).items():
                        lost = self.topics.pop((topic, row.key))
                        assert lost in map(data.fragment_under, WriteRule)
                case FilterServersChange():
                    _apply(self.filter_servers, row)
                case KvChange():
                    _apply(self.kv, row)
                case _:
                    self._apply_brokers(row)

    def _apply_brokers(self, row: Row) -> None:
        match row:
            case GroupChange():
                _apply(self.groups, row)
            case LiveChange(key, before, after, reason):
                _apply(self.live, LiveChange(key, before and _as_read(before), after and _as_read(after), reason))
            case ClusterChange():
                assert (row.key in self.clusters) is (row.before is not None)
                self.clusters ^= {row.key}
            case IntentChange():
                _apply(self.intents, row)
            case _:
                assert isinstance(row, SettingChange), "belongs to no table"


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def _apply(table: dict[KeyT, ValueT], row: RowChange[KeyT, ValueT]) -> None:
    assert row.before == table.get(row.key)
    assert row.before != row.after
    if row.after is None:
        del table[row.key]
    else:
        table[row.key] = row.after


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
            case LiveChange(reason=RemovalReason() as reason):
                yield f"{reason.name} gone"
            case QueuesChange(reason=RemovalReason() as reason):
                yield f"{reason.name} lost"
            case LiveChange(live=live) if live.unconfirmed:
                yield "held by the guard" if live.key in before.live else "brought back by the guard"
            case IntentChange():
                kind = "hold" if isinstance(row.key, HoldKey) else "permission"
                yield kind if row.after else f"{kind} lifted"
            case _:
                pass


def tables_of(state: RouteState) -> ReaderTables:
    """The tables as a reader of the whole log must have them."""
    tables, index = state.tables, state.index
    in_force = index.queue_datas.in_force
    return ReaderTables(
        topics={
            (topic, index.queue_datas.of(fragment).broker): in_force.get(fragment, fragment)
            for topic, fragments in tables.topic_queue_table.rows()
            for fragment in fragments
        },
        groups=dict(tables.broker_addr_table),
        live={key: _as_read(live) for key, live in tables.broker_live_table.items()},
        clusters=set(index.cluster_addr_table),
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
