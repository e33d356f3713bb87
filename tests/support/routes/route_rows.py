"""The route tables as a reader holds them: rows by key, filled from a snapshot and kept up by changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

Key = tuple[str, ...]


@dataclass
class RouteRows:
    """All rows, without what every renewed registration changes. Applying a change is strict: what goes was there."""

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

    def apply(self, change: pb.RouteChange) -> None:
        """Takes one change in."""
        name = change.WhichOneof("row")
        table, *parts = key_of(change)
        key = tuple(parts)
        match name:
            case "topic_put":
                (self.queues[key],) = change.topic_put.queue_datas
            case "live_put":
                self._put_live(change.live_put)
            case "topic_removed" | "broker_removed":
                del getattr(self, table)[key]
            case "broker_put":
                self.groups[key] = change.broker_put
                self.clusters[key[0]] |= {key[1]}
            case "group_removed":
                del self.groups[key]
                self.clusters[key[0]] -= {key[1]}
            case "cluster_put":
                self.clusters[key[0]] = frozenset(change.cluster_put.broker_names)
            case "cluster_removed":
                assert self.clusters.pop(key[0]) == frozenset()
            case "filter_put":
                self._put_filter_servers(key, tuple(change.filter_put.filter_servers))
            case _:
                raise AssertionError(f"unknown row {name}")

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


TABLES = {
    pb.ROUTE_TABLE_CLUSTERS: "clusters",
    pb.ROUTE_TABLE_TOPIC_QUEUES: "queues",
    pb.ROUTE_TABLE_BROKER_GROUPS: "groups",
    pb.ROUTE_TABLE_FILTER_SERVERS: "filters",
    pb.ROUTE_TABLE_LIVE_BROKERS: "live",
}
"""What a reader calls the tables that can be asked for."""


class FollowedRows(RouteRows):
    """Rows of some tables, kept up by normalised changes, where a group that goes is one change.

    Strict: what changes none of the tables must not come.
    """

    def __init__(self, tables: Iterable[pb.RouteTable] = tuple(TABLES)) -> None:
        super().__init__()
        self._held = {TABLES[table] for table in tables}

    def take(self, message: pb.StreamRouteSnapshotResponse) -> None:
        """Takes a message in that comes after the end of the snapshot."""
        for change in message.changes.changes:
            kind = change.WhichOneof("row")
            if kind == "broker_put":
                self._put_group(change)
            elif kind == "group_removed":
                self._remove_group(change)
            else:
                assert key_of(change)[0] in self._held, f"{kind} changes no table that was asked for"
                self.apply(change)

    def of_tables(self, tables: Collection[pb.RouteTable]) -> FollowedRows:
        """A copy of what is in some tables, to be kept up."""
        rows = FollowedRows(tables)
        for table in tables:
            setattr(rows, TABLES[table], dict(getattr(self, TABLES[table])))
        return rows

    def _put_group(self, change: pb.RouteChange) -> None:
        assert self._held & {"groups", "clusters"}
        _, cluster, name = key_of(change)
        if "groups" in self._held:
            self.groups[cluster, name] = change.broker_put
        if "clusters" in self._held:
            self.clusters[cluster] |= {name}

    def _remove_group(self, change: pb.RouteChange) -> None:
        assert self._held & {"groups", "clusters", "queues"}
        _, cluster, name = key_of(change)
        if "groups" in self._held:
            del self.groups[cluster, name]
        if "clusters" in self._held:
            self.clusters[cluster] -= {name}
        self.queues = {key: row for key, row in self.queues.items() if key[1:] != (cluster, name)}
