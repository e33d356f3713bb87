"""Changes as messages for readers that follow a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from namesrv_api.v1 import route_data_pb2, route_service_pb2

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
from namesrv.core.encoding import frame, tag, varint
from namesrv.core.model import BrokerData, BrokerKey, BrokerLiveInfo, LiveKey, RemovalReason
from namesrv.core.snapshot import ALL_TABLES, RouteTable, chunks, topic_queues
from namesrv.core.state import NamesrvIdentity
from namesrv.core.watch.hub import Follower

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
    QueuesChange: (RouteTable.TOPIC_QUEUES,),
    GroupChange: (RouteTable.BROKER_GROUPS, RouteTable.CLUSTERS),
    LiveChange: (RouteTable.LIVE_BROKERS,),
    ClusterChange: (RouteTable.CLUSTERS,),
    FilterServersChange: (RouteTable.FILTER_SERVERS,),
}
"""The tables of a reader that each kind of row changes. Clusters name their groups, so they change with them."""

_RESPONSE = route_service_pb2.StreamRouteChangesResponse
_CHANGES = route_service_pb2.RouteChanges
_ROW = route_service_pb2.RouteChange
_ROW_TAG = tag(_CHANGES.CHANGES_FIELD_NUMBER)
_TOPIC_PUT_TAG = tag(_ROW.TOPIC_PUT_FIELD_NUMBER)
_TOPIC_REMOVED_TAG = tag(_ROW.TOPIC_REMOVED_FIELD_NUMBER)
_REMOVED_TOPIC_TAG = tag(route_service_pb2.TopicQueuesRemoval.TOPIC_FIELD_NUMBER)


def change_messages(change: Change | None, up_to_revision: int, identity: NamesrvIdentity) -> Iterator[bytes]:
    """The encoded StreamRouteChangesResponse messages: those of each change, then the revision reached.

    An empty message stands for a pause: so much was encoded or skipped that other work should run. Callers must not
    keep the first change: every change after it would stay in memory.
    """
    visited = 0
    while change is not None and change.revision <= up_to_revision:
        start = b""
        for changes in route_changes(change.rows, change.applied_at_millis):
            if not changes:
                yield b""
                continue
            start = start or _header(identity, change.revision)
            yield start + frame(_RESPONSE.CHANGES_FIELD_NUMBER, changes)
        visited += 1
        if visited % CHANGE_SLICE == 0:
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
    applied_at = b""
    for chunk in chunks(_rows(rows, applied_at_millis, tables, normalised=normalised)):
        if not chunk:
            yield b""
            continue
        applied_at = applied_at or _CHANGES(applied_at_millis=applied_at_millis).SerializeToString()
        yield applied_at + chunk


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
            changed = (*changed, RouteTable.TOPIC_QUEUES)  # it stands for its queues, too
        match row:
            case _ if not any(table in tables for table in changed):
                pass
            case QueuesChange(after=None):
                if row.key not in groups_gone:
                    yield from _topic_rows(row.topics, partial(_topic_removed, _removal_of_any_topic(row)))
            case QueuesChange():
                yield from _topic_rows(row.topics, partial(_topic_put, row))
            case GroupChange() | LiveChange() | ClusterChange() | FilterServersChange():
                yield _framed(_row(row, applied_at_millis).SerializeToString())
            case _:
                pass
        if count % BROKER_SLICE == 0:
            yield b""


def _framed(row: bytes) -> bytes:
    """A RouteChange, framed as the field changes of a RouteChanges."""
    return b"".join((_ROW_TAG, varint(len(row)), row))


def _topic_rows(topics: Collection[str], encode: Callable[[str], bytes]) -> Iterator[bytes]:
    for count, topic in enumerate(topics, 1):
        yield _framed(encode(topic))
        if count % TOPIC_SLICE == 0:
            yield b""


def _topic_put(row: QueuesChange, topic: str) -> bytes:
    """A RouteChange: the topic's queues on the group, as they are in force."""
    queues = topic_queues(topic, (row.topics[topic].fragment_under(row.write),))
    return b"".join((_TOPIC_PUT_TAG, varint(len(queues)), queues))


def _removal_of_any_topic(row: QueuesChange) -> bytes:
    """What the removals of a group's topics have in common: a TopicQueuesRemoval without the topic."""
    assert row.reason is not None, "a row goes for a reason"
    cluster_name, broker_name = row.key
    return route_service_pb2.TopicQueuesRemoval(
        cluster_name=cluster_name, broker_name=broker_name, reason=_reason(row.reason)
    ).SerializeToString()


def _topic_removed(rest: bytes, topic: str) -> bytes:
    """A RouteChange: the topic has lost its queues on the group."""
    name = topic.encode()
    removal = b"".join((_REMOVED_TOPIC_TAG, varint(len(name)), name, rest))
    return b"".join((_TOPIC_REMOVED_TAG, varint(len(removal)), removal))


def _row(
    row: GroupChange | LiveChange | ClusterChange | FilterServersChange, applied_at_millis: int
) -> route_service_pb2.RouteChange:
    """The row of a key that is put or removed; filter servers are put empty."""
    reason = None if row.reason is None else _reason(row.reason)
    match row:
        case GroupChange(after=BrokerData() as group):
            made = _ROW(broker_put=encoding.broker_data(group))
        case GroupChange(key=BrokerKey(cluster, name)):
            gone = route_service_pb2.BrokerGroupRemoval(cluster_name=cluster, broker_name=name, reason=reason)
            made = _ROW(group_removed=gone)
        case LiveChange(after=BrokerLiveInfo() as live):
            made = _ROW(live_put=encoding.broker_live_info(live, applied_at_millis))
        case LiveChange(live=BrokerLiveInfo(broker=BrokerKey(cluster, name), broker_id=number, broker_addr=address)):
            left = route_service_pb2.BrokerRemoval(
                cluster_name=cluster, broker_name=name, broker_id=number, broker_addr=address, reason=reason
            )
            made = _ROW(broker_removed=left)
        case ClusterChange(after=frozenset() as names):
            made = _ROW(cluster_put=route_data_pb2.ClusterData(cluster_name=row.key, broker_names=sorted(names)))
        case ClusterChange():
            made = _ROW(cluster_removed=route_service_pb2.ClusterRemoval(cluster_name=row.key, reason=reason))
        case FilterServersChange(key=LiveKey(cluster, address), after=after):
            servers = route_data_pb2.FilterServerData(
                cluster_name=cluster, broker_addr=address, filter_servers=after or ()
            )
            made = _ROW(filter_put=servers)
    return made


def _reason(reason: RemovalReason) -> str:
    """The wire's name of a reason, which is what the generated classes are typed for."""
    return route_data_pb2.RemovalReason.Name(reason.value)


# Messages after a snapshot that is followed: each change, normalised, and bookmarks.

_SNAPSHOT_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse

assert _SNAPSHOT_RESPONSE.HEADER_FIELD_NUMBER == _RESPONSE.HEADER_FIELD_NUMBER, "both streams frame headers alike"


def follow_messages(
    log: ChangeLog, reader: Follower, identity: NamesrvIdentity, tables: Collection[RouteTable]
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
