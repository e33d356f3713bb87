"""The route tables as a reader holds them that follows a snapshot, where a group that goes is one change."""

from __future__ import annotations

from namesrv_api.v1 import route_service_pb2 as pb

from support.route_rows import RouteRows


class FollowedRows(RouteRows):
    """Rows that are kept up by normalised changes."""

    def take(self, message: pb.StreamRouteSnapshotResponse) -> None:
        """Takes a message in that comes after the end of the snapshot."""
        for change in message.changes.changes:
            if change.HasField("group_removed"):
                gone = change.group_removed
                group = gone.cluster_name, gone.broker_name
                self.queues = {key: row for key, row in self.queues.items() if key[1:] != group}
                if group not in self.groups:  # a shard without brokers
                    continue
            self.apply(change)
