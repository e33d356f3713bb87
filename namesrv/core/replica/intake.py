"""The intake of a copy: it turns the messages of its leader's stream into changes, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.replica.manager import LeaderChange, OutOfStep, ReplicaManager
from namesrv.core.routes.route_state import NamesrvIdentity
from namesrv.core.slices import Sliced
from namesrv.core.snapshot.load import SnapshotReader


class ReplicaIntake:
    """Fills a copy from a snapshot, then makes the leader's changes in it. One for each copy."""

    def __init__(self, new_manager: Callable[[NamesrvIdentity], ReplicaManager], name: str | None) -> None:
        """Starts before the first message of a snapshot.

        Args:
            new_manager: Makes the empty tables.
            name: What the copy calls itself; None: as its leader does.
        """
        self._new_manager = new_manager
        self._name = name
        self._reader: SnapshotReader | None = SnapshotReader(of_leader=True)
        self._opening = pb.ReplicaRows()
        self._change: LeaderChange | None = None
        self.manager: ReplicaManager | None = None
        """The copy; None before its snapshot is whole."""

    def stream_ended(self) -> None:
        """The stream begins again after the copy's revision: what has come of the next revision comes again."""
        self._change = None

    def take(self, message: pb.StreamRouteSnapshotResponse) -> Sliced[bool]:
        """Takes one message in.

        Returns:
            Whether it was a bookmark: the copy is now as the leader was when it sent it.

        Raises:
            UnusableSnapshot: The snapshot is none.
            OutOfStep: A change does not follow the one before it.
        """
        if self.manager is None:
            yield from self._take_snapshot(message)
            return False
        content = message.WhichOneof("content")
        if content == "replica_rows":
            self.manager.take_news(message.replica_rows)
            return False
        if content != "changes":
            raise OutOfStep("the leader sends a snapshot where changes are due")
        if message.header.epoch != self.manager.identity.epoch:
            raise OutOfStep(f"the epoch is {message.header.epoch} now")
        return (yield from self._take_changes(message.header.revision, message.changes))

    def _take_snapshot(self, message: pb.StreamRouteSnapshotResponse) -> Sliced[None]:
        reader = self._reader
        assert reader is not None, "it is there until the snapshot is whole"
        if message.WhichOneof("content") == "replica_rows":
            self._opening.MergeFrom(message.replica_rows)
            return
        yield from reader.take(message)
        if reader.is_whole:
            header = message.header
            manager = self._new_manager(NamesrvIdentity(self._name or header.namesrv_name, header.epoch))
            yield from manager.load(reader.finish(), self._opening, header.revision)
            self.manager, self._reader, self._opening = manager, None, pb.ReplicaRows()

    def _take_changes(self, revision: int, changes: pb.RouteChanges) -> Sliced[bool]:
        assert self.manager is not None, "the snapshot came before"
        is_bookmark = not changes.changes and not changes.HasField("replica_rows")
        if self._change is not None and (is_bookmark or self._change.revision != revision):
            change, self._change = self._change, None
            yield from self.manager.apply(change)
        if is_bookmark:
            if revision != self.manager.revision:
                raise OutOfStep(f"the bookmark is of revision {revision}, the copy of {self.manager.revision}")
            return True
        if self._change is None:
            self._change = LeaderChange(revision, changes.applied_at_millis)
        self._change.rows += changes.changes
        self._change.more.MergeFrom(changes.replica_rows)
        return False
