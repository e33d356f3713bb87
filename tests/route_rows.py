"""The route tables as a reader holds them: rows by key, filled from a snapshot and kept up by changes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
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
        """The rows of a snapshot, or of one shard of it."""
        rows = cls()
        for message in messages:
            chunk = message.chunk
            for cluster in chunk.clusters:
                rows.clusters[cluster.cluster_name] = frozenset(cluster.broker_names)
            for topic in chunk.topics:
                for queue_data in topic.queue_datas:
                    rows._put_queues(topic.topic, queue_data)
            for group in chunk.broker_datas:
                rows.groups[group.cluster_name, group.broker_name] = group
            for servers in chunk.filter_servers:
                rows.filters[servers.cluster_name, servers.broker_addr] = tuple(servers.filter_servers)
            for live in chunk.live_brokers:
                rows._put_live(live)
        return rows

    def apply(self, change: pb.RouteChange) -> None:
        """Takes one change in."""
        match change.WhichOneof("row"):
            case "topic_put":
                (queue_data,) = change.topic_put.queue_datas
                self._put_queues(change.topic_put.topic, queue_data)
            case "topic_removed":
                del self.queues[key_of(change)[1:]]
            case "broker_put":
                cluster_name, broker_name = key = key_of(change)[1:]
                self.groups[key] = change.broker_put
                self.clusters[cluster_name] |= {broker_name}
            case "group_removed":
                cluster_name, broker_name = key = key_of(change)[1:]
                del self.groups[key]
                self.clusters[cluster_name] -= {broker_name}
            case "live_put":
                self._put_live(change.live_put)
            case "broker_removed":
                del self.live[key_of(change)[1:]]
            case "cluster_put":
                self.clusters[change.cluster_put.cluster_name] = frozenset(change.cluster_put.broker_names)
            case "cluster_removed":
                assert self.clusters.pop(change.cluster_removed.cluster_name) == frozenset()
            case "filter_put" if change.filter_put.filter_servers:
                self.filters[key_of(change)[1:]] = tuple(change.filter_put.filter_servers)
            case "filter_put":
                del self.filters[key_of(change)[1:]]
            case nothing:
                raise AssertionError(f"a change of {nothing}")

    def shard(self, index: int, count: int) -> RouteRows:
        """A copy of the rows that belong to a shard."""
        queues = {key: row for key, row in self.queues.items() if zlib.crc32(key[0].encode()) % count == index}
        if index:
            return RouteRows(queues)
        return RouteRows(queues, dict(self.groups), dict(self.live), dict(self.filters), dict(self.clusters))

    def _put_queues(self, topic: str, queue_data: route_data_pb2.QueueData) -> None:
        self.queues[topic, queue_data.cluster_name, queue_data.broker_name] = queue_data

    def _put_live(self, live: route_data_pb2.BrokerLiveInfo) -> None:
        row = route_data_pb2.BrokerLiveInfo()
        row.CopyFrom(live)
        for name in ("last_update_timestamp_millis", "generation", "has_channel"):
            row.ClearField(name)
        self.live[row.cluster_name, row.broker_addr] = row


def key_of(change: pb.RouteChange) -> Key:
    """Table and key of a change."""
    match change.WhichOneof("row"):
        case "topic_put":
            (queues,) = change.topic_put.queue_datas
            return "queues", change.topic_put.topic, queues.cluster_name, queues.broker_name
        case "topic_removed":
            removed = change.topic_removed
            return "queues", removed.topic, removed.cluster_name, removed.broker_name
        case "broker_put":
            return "groups", change.broker_put.cluster_name, change.broker_put.broker_name
        case "group_removed":
            return "groups", change.group_removed.cluster_name, change.group_removed.broker_name
        case "live_put":
            return "live", change.live_put.cluster_name, change.live_put.broker_addr
        case "broker_removed":
            return "live", change.broker_removed.cluster_name, change.broker_removed.broker_addr
        case "cluster_put":
            return "clusters", change.cluster_put.cluster_name
        case "cluster_removed":
            return "clusters", change.cluster_removed.cluster_name
        case "filter_put":
            return "filters", change.filter_put.cluster_name, change.filter_put.broker_addr
    raise AssertionError(f"a change without a row: {change}")
