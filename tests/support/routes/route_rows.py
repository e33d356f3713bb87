"""The route tables as a reader holds them: rows by key, filled from a snapshot and kept up by changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

Key = tuple[str, ...]


TABLES = {
    pb.ROUTE_TABLE_CLUSTERS: "clusters",
    pb.ROUTE_TABLE_TOPIC_QUEUES: "queues",
    pb.ROUTE_TABLE_BROKER_GROUPS: "groups",
    pb.ROUTE_TABLE_FILTER_SERVERS: "filters",
    pb.ROUTE_TABLE_LIVE_BROKERS: "live",
}
"""What a reader calls the tables that can be asked for."""


@dataclass
class RouteRows:
    """All rows of some tables, without what every renewed registration changes.

    Changes are strict: what goes was there, and what changes none of the tables must not come.
    """

    held: frozenset[str] = field(default=frozenset(TABLES.values()), compare=False)
    queues: dict[Key, route_data_pb2.QueueData] = field(default_factory=dict)
    """By topic, cluster and broker name."""
    groups: dict[Key, route_data_pb2.BrokerData] = field(default_factory=dict)
    """By cluster and broker name."""
    live: dict[Key, route_data_pb2.BrokerLiveInfo] = field(default_factory=dict)
    """By cluster and address."""
    filters: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """By cluster and address."""
    clusters: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of_snapshot(cls, messages: Iterable[pb.StreamRouteSnapshotResponse]) -> Self:
        """The rows of a snapshot."""
        rows = cls()
        for message in messages:
            chunk = message.chunk
            for cluster in chunk.clusters:
                rows.clusters[cluster.cluster_name] = frozenset(cluster.broker_names)
            for topic in chunk.topics:
                for queue_data in topic.queue_datas:
                    rows.queues[topic.topic, queue_data.cluster_name, queue_data.broker_name] = queue_data
            for group in chunk.broker_datas:
                rows.groups[group.cluster_name, group.broker_name] = group
            for servers in chunk.filter_servers:
                rows.filters[servers.cluster_name, servers.broker_addr] = tuple(servers.filter_servers)
            for live in chunk.live_brokers:
                rows._put_live(live)
        return rows

    def of_tables(self, tables: Collection[pb.RouteTable]) -> RouteRows:
        """A copy of what is in some tables, to be kept up."""
        names = frozenset(TABLES[table] for table in tables)
        return RouteRows(names, **{name: dict(getattr(self, name)) for name in names})

    def take(self, message: pb.StreamRouteSnapshotResponse) -> None:
        """Takes a message of normalised changes in, where a group that goes is one change, also of its queues."""
        for change in message.changes.changes:
            self.apply(change)
            if change.HasField("group_removed"):
                gone = key_of(change)[1:]
                self.queues = {key: row for key, row in self.queues.items() if key[1:] != gone}

    def apply(self, change: pb.RouteChange) -> None:
        """Takes one change in."""
        name = change.WhichOneof("row")
        table, *parts = key_of(change)
        key = tuple(parts)
        assert self.held & _OF_GROUPS.get(str(name), {table}), f"{name} changes no table that was asked for"
        match name:
            case "topic_put":
                (self.queues[key],) = change.topic_put.queue_datas
            case "live_put":
                self._put_live(change.live_put)
            case "topic_removed" | "broker_removed":
                del getattr(self, table)[key]
            case "broker_put":
                self._put_group(key, change.broker_put)
            case "group_removed":
                self._remove_group(key)
            case "cluster_put":
                self.clusters[key[0]] = frozenset(change.cluster_put.broker_names)
            case "cluster_removed":
                assert self.clusters.pop(key[0]) == frozenset()
            case "filter_put":
                self._put_filter_servers(key, tuple(change.filter_put.filter_servers))
            case _:
                raise AssertionError(f"unknown row {name}")

    def _put_group(self, key: Key, group: route_data_pb2.BrokerData) -> None:
        if "groups" in self.held:
            self.groups[key] = group
        if "clusters" in self.held:
            self.clusters[key[0]] |= {key[1]}

    def _remove_group(self, key: Key) -> None:
        if "groups" in self.held:
            del self.groups[key]
        if "clusters" in self.held:
            self.clusters[key[0]] -= {key[1]}

    def _put_filter_servers(self, key: Key, filter_servers: tuple[str, ...]) -> None:
        if filter_servers:
            self.filters[key] = filter_servers
        else:
            del self.filters[key]

    def _put_live(self, live: route_data_pb2.BrokerLiveInfo) -> None:
        row = route_data_pb2.BrokerLiveInfo()
        row.CopyFrom(live)
        for name in _CHANGES_WITHOUT_A_REVISION:
            row.ClearField(name)
        self.live[row.cluster_name, row.broker_addr] = row


_CHANGES_WITHOUT_A_REVISION = (
    "last_update_timestamp_millis", "generation", "has_channel", "doubt_ends_at_millis", "doubt_reason"
)  # fmt: skip
_OF_GROUPS = {"broker_put": {"groups", "clusters"}, "group_removed": {"groups", "clusters", "queues"}}
"""Tables that a change of a group concerns."""
_KEYS = {
    "topic_removed": ("queues", "topic", "cluster_name", "broker_name"),
    "broker_put": ("groups", "cluster_name", "broker_name"),
    "group_removed": ("groups", "cluster_name", "broker_name"),
    "live_put": ("live", "cluster_name", "broker_addr"),
    "broker_removed": ("live", "cluster_name", "broker_addr"),
    "cluster_put": ("clusters", "cluster_name"),
    "cluster_removed": ("clusters", "cluster_name"),
    "filter_put": ("filters", "cluster_name", "broker_addr"),
}
"""Table and fields of the key, by the kind of the change."""


def key_of(change: pb.RouteChange) -> Key:
    """Table and key of a change."""
    if change.HasField("topic_put"):
        (queues,) = change.topic_put.queue_datas
        return "queues", change.topic_put.topic, queues.cluster_name, queues.broker_name
    name = change.WhichOneof("row")
    assert name is not None, "a change without a row"
    table, *fields = _KEYS[name]
    return table, *(str(getattr(getattr(change, name), part)) for part in fields)
