"""Changes as messages for readers that follow a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from namesrv_api.v1 import route_data_pb2, route_service_pb2
from namesrv_api.v1.route_service_pb2 import RouteTable

from namesrv.core import encoding
from namesrv.core.changes import (
    Change,
    ChangeLog,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    LiveChange,
    QueuesChange,
    Row,
)
from namesrv.core.encoding import frame, removal_reason
from namesrv.core.model import BrokerData, BrokerKey, BrokerLiveInfo
from namesrv.core.snapshot import ALL_TABLES, chunks
from namesrv.core.state import NamesrvIdentity
from namesrv.core.watch.hub import ChangeReader

# Changes as the rows of StreamRouteChanges: one for each key and revision.
#
# A change names a group's topics together; here each of them becomes a row of its own. Rows are unique by epoch,
# revision, table and key. Applied to the snapshot of a revision, the rows after it make the snapshot of any later
# revision. A reader that follows a snapshot gets them normalised: a group that goes is one row, also if it had ten
# thousand topics.

TOPIC_SLICE = 500
"""Topics that are sent before yielding: about a millisecond."""

BROKER_SLICE = 50
"""Rows of brokers and clusters that are encoded before yielding: about a millisecond."""

CHANGE_SLICE = 500
"""Changes that are skipped before yielding: about a millisecond."""

_CHANGED_BY: dict[type[Row], tuple[RouteTable, ...]] = {
    QueuesChange: (route_service_pb2.ROUTE_TABLE_TOPIC_QUEUES,),
    GroupChange: (route_service_pb2.ROUTE_TABLE_BROKER_GROUPS, route_service_pb2.ROUTE_TABLE_CLUSTERS),
    LiveChange: (route_service_pb2.ROUTE_TABLE_LIVE_BROKERS,),
    ClusterChange: (route_service_pb2.ROUTE_TABLE_CLUSTERS,),
    FilterServersChange: (route_service_pb2.ROUTE_TABLE_FILTER_SERVERS,),
}
"""The tables of a reader that each kind of row changes. Clusters name their groups, so they change with them."""

_RESPONSE = route_service_pb2.StreamRouteChangesResponse
_CHANGES = route_service_pb2.RouteChanges
_ROW = route_service_pb2.RouteChange
_TOPIC = route_service_pb2.TopicQueues.TOPIC_FIELD_NUMBER
_REMOVED_TOPIC = route_service_pb2.TopicQueuesRemoval.TOPIC_FIELD_NUMBER


def change_messages(change: Change | None, up_to_revision: int, identity: NamesrvIdentity) -> Iterator[bytes]:
    """The encoded StreamRouteChangesResponse messages: those of each change, then the revision reached.

    An empty message stands for a pause: so much was encoded or skipped that other work should run. Callers must not
    keep the first change: every change after it would stay in memory.
    """
    while change is not None and change.revision <= up_to_revision:
        start = _header(identity, change.revision)
        for changes in route_changes(change.rows, change.applied_at_millis):
            yield start + frame(_RESPONSE.CHANGES_FIELD_NUMBER, changes) if changes else b""
        if change.revision % CHANGE_SLICE == 0:
            yield b""
        change = change.next
    yield _header(identity, up_to_revision)


def _header(identity: NamesrvIdentity, revision: int) -> bytes:
    header = route_data_pb2.NamesrvHeader(namesrv_name=identity.name, epoch=identity.epoch, revision=revision)
    return frame(_RESPONSE.HEADER_FIELD_NUMBER, header.SerializeToString())


def route_changes(
    rows: Sequence[Row],
    applied_at_millis: int,
    tables: Collection[RouteTable] = ALL_TABLES,
    *,
    normalised: bool = False,
) -> Iterator[bytes]:
    """The rows of one change as encoded RouteChanges, as many as they need; an empty one stands for a pause.

    Normalised, a group that goes is one row, instead of one for each of its topics.
    """
    applied_at = _CHANGES(applied_at_millis=applied_at_millis).SerializeToString()
    for chunk in chunks(_rows(rows, applied_at_millis, tables, normalised=normalised)):
        yield applied_at + chunk if chunk else b""


def _rows(
    rows: Sequence[Row], applied_at_millis: int, tables: Collection[RouteTable], *, normalised: bool
) -> Iterator[bytes]:
    """A change's rows, framed as the field changes of a RouteChanges; an empty one is a pause.

    Intents and configurations are in no table of the routes: what they change there has rows of its own.
    """
    groups_gone = {row.key for row in rows if normalised and isinstance(row, GroupChange) and row.after is None}
    for count, row in enumerate(rows, 1):
        changed = _CHANGED_BY.get(type(row), ())
        if isinstance(row, GroupChange) and row.key in groups_gone:
            changed = (*changed, route_service_pb2.ROUTE_TABLE_TOPIC_QUEUES)  # it stands for its queues, too
        match row:
            case _ if not any(table in tables for table in changed):
                pass
            case QueuesChange():
                if row.after is not None or row.key not in groups_gone:
                    yield from _topics(row)
            case GroupChange() | LiveChange() | ClusterChange() | FilterServersChange():
                yield frame(_CHANGES.CHANGES_FIELD_NUMBER, _row(row, applied_at_millis).SerializeToString())
            case _:
                pass
        if count % BROKER_SLICE == 0:
            yield b""


def _topics(row: QueuesChange) -> Iterator[bytes]:
    """A row for each topic: with its queues on the group as they are in force, or that it has lost them."""
    lost = route_service_pb2.TopicQueuesRemoval(reason=removal_reason(row.reason))
    lost.cluster_name, lost.broker_name = row.key
    rest = lost.SerializeToString()
    for count, (topic, queue_data) in enumerate(row.topics.items(), 1):
        if row.after is None:
            made = frame(_ROW.TOPIC_REMOVED_FIELD_NUMBER, frame(_REMOVED_TOPIC, topic.encode()), rest)
        else:
            name = frame(_TOPIC, topic.encode())
            made = frame(_ROW.TOPIC_PUT_FIELD_NUMBER, name, queue_data.fragments[row.write])
        yield frame(_CHANGES.CHANGES_FIELD_NUMBER, made)
        if count % TOPIC_SLICE == 0:
            yield b""


def _row(
    row: GroupChange | LiveChange | ClusterChange | FilterServersChange, applied_at_millis: int
) -> route_service_pb2.RouteChange:
    """The row of a key that is put or removed; filter servers are put empty."""
    reason = removal_reason(row.reason)
    match row:
        case GroupChange(after=BrokerData() as group):
            made = _ROW(broker_put=encoding.broker_data(group))
        case GroupChange(key=BrokerKey(cluster, name)):
            gone = route_service_pb2.BrokerGroupRemoval(cluster_name=cluster, broker_name=name, reason=reason)
            made = _ROW(group_removed=gone)
        case LiveChange(after=BrokerLiveInfo() as live):
            made = _ROW(live_put=encoding.broker_live_info(live, applied_at_millis))
        case LiveChange(live=live):
            left = encoding.broker_removal(live.broker, live.broker_id, live.broker_addr, row.reason)
            made = _ROW(broker_removed=left)
        case ClusterChange(after=frozenset() as names):
            made = _ROW(cluster_put=encoding.cluster_data(row.key, names))
        case ClusterChange():
            made = _ROW(cluster_removed=route_service_pb2.ClusterRemoval(cluster_name=row.key, reason=reason))
        case FilterServersChange():
            made = _ROW(filter_put=encoding.filter_server_data(row.key, row.after or ()))
    return made


# Messages after a snapshot that is followed: each change, normalised, and bookmarks.

_SNAPSHOT_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse

assert _SNAPSHOT_RESPONSE.HEADER_FIELD_NUMBER == _RESPONSE.HEADER_FIELD_NUMBER, "both streams frame headers alike"


def follow_messages(
    log: ChangeLog, reader: ChangeReader, identity: NamesrvIdentity, tables: Collection[RouteTable]
) -> Iterator[bytes]:
    """The encoded StreamRouteSnapshotResponse messages of all changes that a reader has not been sent, then a bookmark.

    A bookmark has no changes, and the revision up to which everything has been sent. An empty message stands for a
    pause: so much was encoded or skipped that other work should run. No change is held while a message is being
    sent, so a slow reader keeps no change in memory.

    Args:
        reader: What has been sent; moves on.

    Raises:
        REVISION_COMPACTED: The change log does not reach back so far.
        Refused: The reader must end.
    """
    while True:
        if reader.failure is not None:
            raise reader.failure
        log.check_reaches(reader.revision)
        change = log.after(reader.revision)
        if change is None:
            break
        revision, applied_at_millis, rows = change.revision, change.applied_at_millis, change.rows
        del change
        for changes in route_changes(rows, applied_at_millis, tables, normalised=True):
            yield _message(identity, revision, changes) if changes else b""
        reader.revision = revision
        if revision % CHANGE_SLICE == 0:
            yield b""
    yield _message(identity, reader.revision, b"")


def _message(identity: NamesrvIdentity, revision: int, changes: bytes) -> bytes:
    return _header(identity, revision) + frame(_SNAPSHOT_RESPONSE.CHANGES_FIELD_NUMBER, changes)
