"""The route tables as a reader holds them that follows a snapshot, where a group that goes is one change."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.routes.route_rows import RouteRows, key_of

TABLES = {
    pb.ROUTE_TABLE_CLUSTERS: "clusters",
    pb.ROUTE_TABLE_TOPIC_QUEUES: "queues",
    pb.ROUTE_TABLE_BROKER_GROUPS: "groups",
    pb.ROUTE_TABLE_FILTER_SERVERS: "filters",
    pb.ROUTE_TABLE_LIVE_BROKERS: "live",
}
"""What a reader calls the tables that can be asked for."""


class FollowedRows(RouteRows):
    """Rows of some tables, kept up by normalised changes. Strict: what changes none of the tables must not come."""

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

    def of_tables(self, tables: Iterable[pb.RouteTable]) -> FollowedRows:
        """A copy of what is in some tables."""
        rows = FollowedRows()
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
