"""The publication of an edit: one step makes it the tables' state and says what changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from namesrv.core.records import fragments
from namesrv.core.records.changes import (
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
from namesrv.core.records.rows import MASTER_ID, BrokerData, BrokerKey, LiveKey
from namesrv.core.tables.edit_state import EditState


def publish_edit(edit: EditState) -> tuple[Row, ...]:
    """Makes the edit the tables' state; the topic table must be settled. Call ``prepare`` before.

    Returns:
        What changed that a reader can see; empty if nothing did.
    """
    rows: list[Row] = []
    refiltered = _publish_filters(edit, rows)
    _publish_groups(edit, rows)
    _renew_fragments(edit, refiltered)
    _publish_live(edit, rows)
    _publish_topics(edit, rows)
    _publish_held(edit)
    return tuple(rows)


def _publish_filters(edit: EditState, rows: list[Row]) -> set[BrokerKey]:
    """Publishes filter servers; returns the groups of whose routes they are a part."""
    table, refiltered = edit.tables.filter_server_table, set()
    for key, filter_servers in edit.filters.items():
        if table.get(key, ()) == filter_servers:
            continue
        live = edit.live.get(key) or edit.tables.broker_live_table[key]
        rows.append(FilterServersPut(key, live.broker, filter_servers))
        refiltered.add(live.broker)
        table[key] = filter_servers
        if not filter_servers:
            del table[key]
    return refiltered


def _renew_fragments(edit: EditState, groups: Iterable[BrokerKey]) -> None:
    """Encodes those groups again for which the edit changes only rows of another table, as a copy's edits may."""
    table = edit.tables.broker_addr_table
    for key in groups:
        if key in table and key not in edit.groups:
            table[key] = _with_fragments(edit, table[key])


def _publish_groups(edit: EditState, rows: list[Row]) -> None:
    tables = edit.tables
    clusters_removed = _publish_clusters(edit, rows)
    for key, group in edit.groups.items():
        before = tables.broker_addr_table.get(key)
        if group is None:
            if before is not None:
                rows.append(GroupRemoved(before, edit.reasons[key]))
                del tables.broker_addr_table[key]
                _forget_name(edit, key)
            continue
        after = _with_fragments(edit, replace(group, write=edit.write_rule(key)))
        tables.queue_datas.set_rule(key, after.write)
        tables.broker_addr_table[key] = after
        tables.clusters_by_name.setdefault(key.broker_name, {})[key.cluster_name] = None
        if before != after:
            rows.append(GroupPut(before, after))
    rows += clusters_removed


def _forget_name(edit: EditState, key: BrokerKey) -> None:
    clusters = edit.tables.clusters_by_name[key.broker_name]
    del clusters[key.cluster_name]
    if not clusters:
        del edit.tables.clusters_by_name[key.broker_name]


def _publish_clusters(edit: EditState, rows: list[Row]) -> list[ClusterRemoved]:
    """Publishes clusters that come; returns those that went, whose rows come after those of their groups.

    A cluster may lose its only group and get another in one edit: then it has neither come nor gone.
    """
    table = edit.tables.cluster_addr_table
    before = {key.cluster_name: key.cluster_name in table for key in edit.groups}
    for key, group in edit.groups.items():
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
            reason = next(edit.reasons[key] for key in edit.groups if key.cluster_name == cluster_name)
            removed.append(ClusterRemoved(cluster_name, reason))
    return removed


def _publish_live(edit: EditState, rows: list[Row]) -> None:
    table = edit.tables.broker_live_table
    for key, live in edit.live.items():
        before = table.get(key)
        if live is not None:
            table[key] = live
            if before is None or not live.same_but_renewed(before):
                rows.append(LivePut(live))
        elif before is not None:
            del table[key]
            rows.append(LiveRemoved(before, edit.reasons[key]))


def _publish_topics(edit: EditState, rows: list[Row]) -> None:
    tables = edit.tables
    for broker, (lost, reason) in edit.removed.items():
        if lost:
            tables.table_marks.pop(broker, None)
            rows.append(QueuesRemoved(broker, lost, reason))
            _publish_lost(edit, broker, lost)
    for broker, put in edit.put.items():
        rule = edit.write_rule(broker)
        if put:
            tables.table_marks.pop(broker, None)
            rows.append(QueuesPut(broker, put, rule))
            tables.queue_datas.set_rule(broker, rule)
    for broker, gained in edit.gained.items():
        known = tables.topics_by_broker.setdefault(broker, gained)
        smaller, larger = (known, gained) if len(known) < len(gained) else (gained, known)
        larger |= smaller
        tables.topics_by_broker[broker] = larger
    for broker, group in edit.groups.items():
        if group is None:
            tables.topics_by_broker.pop(broker, None)
            tables.table_marks.pop(broker, None)
            tables.queue_datas.forget_group(broker)
    if edit.topics:
        edit.topic_names_changed = bool(edit.came or edit.went)
        tables.topic_queue_table.publish(edit.topics, edit.came, edit.went)


def _publish_lost(edit: EditState, broker: BrokerKey, lost: Iterable[str]) -> None:
    if broker in edit.groups and edit.groups[broker] is None:
        return  # all of its topics go with the group
    topics = edit.tables.topics_by_broker[broker]
    for topic in lost:
        topics.pop(topic, None)


def _publish_held(edit: EditState) -> None:
    table = edit.tables.held_queue_table
    edit.tables.held_version += bool(edit.held)
    for (topic, broker), queue_data in edit.held.items():
        edit.tables.table_marks.pop(broker, None)
        holders = table.setdefault(topic, {})
        if queue_data is None:
            holders.pop(broker, None)
        else:
            holders[broker] = queue_data
        if not holders:
            del table[topic]


def _with_fragments(edit: EditState, group: BrokerData) -> BrokerData:
    cluster_name = group.key.cluster_name
    filter_fragment = b"".join(
        fragments.filter_servers_fragment(cluster_name, addr, filter_servers)
        for _, addr in sorted(group.addrs.items())  # a group's routes are the same bytes at every copy of it
        if (filter_servers := edit.tables.filter_server_table.get(LiveKey(cluster_name, addr)))
    )
    acting_fragment = b""
    if edit.is_shown_acted_for(group, group.write):
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
