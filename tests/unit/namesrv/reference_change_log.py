"""A reader of the change log that keeps tables of its own, as a dictionary of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    SettingChange,
)
from namesrv.core.model import BrokerLiveInfo, HoldKey, RemovalReason
from namesrv.core.state import RouteState

ReaderTables = dict[tuple[type[Row], object], object]
"""Rows by the kind of their changes and their key. Queues are there by topic and group, encoded as they are in force.
"""


def apply(tables: ReaderTables, change: Change) -> None:
    """Applies a change's rows in their order. What is changed or removed must be there as they say."""
    for row in change.rows:
        match row:
            case QueuesChange():
                assert (row.before is None) is (row.reason is None) is not (row.after is None)
                for topic, data in (row.after or {}).items():
                    tables[QueuesChange, (topic, row.key)] = data.fragments[row.write]
                for topic, data in (row.before or {}).items():
                    assert tables.pop((QueuesChange, (topic, row.key))) in data.fragments
            case SettingChange():
                pass  # belongs to no table
            case _:
                place, before, after = (type(row), row.key), _as_read(row.before), _as_read(row.after)
                assert before == tables.get(place)
                assert before != after
                tables[place] = after
                if after is None:
                    del tables[place]


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
                yield "held by the guard" if (LiveChange, live.key) in before else "brought back by the guard"
            case IntentChange():
                kind = "hold" if isinstance(row.key, HoldKey) else "permission"
                yield kind if row.after else f"{kind} lifted"
            case _:
                pass


def tables_of(state: RouteState) -> ReaderTables:
    """The tables as a reader of the whole log must have them."""
    tables, index = state.tables, state.index
    rows: ReaderTables = {
        (QueuesChange, (topic, index.queue_datas.of(fragment).broker)): index.queue_datas.in_force.get(
            fragment, fragment
        )
        for topic, fragments in tables.topic_queue_table.rows()
        for fragment in fragments
    }
    for namespace, entries in state.kv_config.namespaces.items():
        rows |= {(KvChange, (namespace, key)): value for key, value in entries.items()}
    for kind, table in (
        (GroupChange, tables.broker_addr_table),
        (LiveChange, tables.broker_live_table),
        (ClusterChange, index.cluster_addr_table),
        (FilterServersChange, tables.filter_server_table),
        (IntentChange, state.intents.intents),
    ):
        rows |= {(kind, key): _as_read(row) for key, row in table.items()}
    return rows


def _as_read(row: object) -> object:
    """A row without what changes and takes no revision, or in changes of other rows."""
    match row:
        case BrokerLiveInfo():
            return replace(row, channel_id=None, generation=0)
        case set() | frozenset():
            return "a cluster"  # whose changes name the groups that came or went with it
        case _:
            return row
