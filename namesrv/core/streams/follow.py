"""Messages after a snapshot that is followed: each change, normalised, and bookmarks."""

from __future__ import annotations

from collections.abc import Iterator

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.records.fragments import frame
from namesrv.core.routes.change_log import ChangeLog
from namesrv.core.routes.route_state import NamesrvIdentity
from namesrv.core.snapshot.route_snapshot import SnapshotPart
from namesrv.core.streams.change_rows import CHANGE_SLICE, route_changes
from namesrv.core.streams.replica_feed import ReplicaFeed
from namesrv.core.watch.watch_index import Follower

_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse
_CHANGES = route_service_pb2.RouteChanges


def follow_messages(
    log: ChangeLog,
    reader: Follower,
    identity: NamesrvIdentity,
    part: SnapshotPart,
    feed: ReplicaFeed | None = None,
) -> Iterator[bytes]:
    """The encoded StreamRouteSnapshotResponse messages of all changes that a reader has not been sent, then a bookmark.

    A bookmark has no changes, and the revision up to which everything has been sent. An empty message stands for a
    pause: so much was encoded or passed over that others should have a turn. No change is held while a message is being
    sent, so a slow reader keeps none in memory.

    Args:
        log: Where the changes are.
        reader: What has been sent; moves on.
        identity: Name and epoch that headers carry.
        part: Which rows to send.
        feed: For a read-only copy: what it gets beyond the tables.

    Raises:
        RevisionCompacted: The change log does not reach back so far, or not any more.
        CallRefused: The reader must end.
    """
    while True:
        if reader.failure is not None:
            raise reader.failure
        log.check_reaches(reader.revision)
        change = log.after(reader.revision)
        if change is None:
            for news in feed.news() if feed is not None else ():
                yield replica_message(identity, reader.revision, news)
            if feed is not None and log.last.revision != reader.revision:
                continue  # rows sent may be of later revisions: the bookmark of this one must not follow
            yield _message(identity, reader.revision, b"")
            return
        revision, applied_at_millis, rows = change.revision, change.applied_at_millis, change.rows
        if feed is not None:
            more = frame(_CHANGES.REPLICA_ROWS_FIELD_NUMBER, feed.of_change(change))
            yield _message(identity, revision, _CHANGES(applied_at_millis=applied_at_millis).SerializeToString() + more)
        del change
        for changes in route_changes(rows, applied_at_millis, part, normalised=True):
            yield _message(identity, revision, changes) if changes else b""
        reader.revision = revision
        if revision % CHANGE_SLICE == 0:
            yield b""


def _message(identity: NamesrvIdentity, revision: int, changes: bytes) -> bytes:
    return _framed(identity, revision, _RESPONSE.CHANGES_FIELD_NUMBER, changes)


def replica_message(identity: NamesrvIdentity, revision: int, rows: bytes) -> bytes:
    """An encoded StreamRouteSnapshotResponse of encoded ReplicaRows."""
    return _framed(identity, revision, _RESPONSE.REPLICA_ROWS_FIELD_NUMBER, rows)


def _framed(identity: NamesrvIdentity, revision: int, field_number: int, content: bytes) -> bytes:
    header = route_data_pb2.NamesrvHeader(namesrv_name=identity.name, epoch=identity.epoch, revision=revision)
    return frame(_RESPONSE.HEADER_FIELD_NUMBER, header.SerializeToString()) + frame(field_number, content)
