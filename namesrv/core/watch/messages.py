"""Messages of watches, and of streams that have each change.

The next message of a watch has current routes of topics, joined and framed once for all watches that get the same. It
is made in one step, and only when all changes up to the current revision have been read. If it leaves nothing over, it
has a bookmark, and all that was sent is then exactly the state at that revision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from namesrv_api.v1 import route_data_pb2, route_service_pb2
from namesrv_api.v1.route_service_pb2 import RouteTable

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
from namesrv.core.model import BrokerData, BrokerKey, BrokerLiveInfo
from namesrv.core.snapshot import ALL_TABLES, chunks
from namesrv.core.state import NamesrvIdentity, RouteState
from namesrv.core.tables import (
    broker_data,
    broker_live_info,
    broker_removal,
    cluster_data,
    filter_server_data,
    frame,
    removal_reason,
    varint,
)
from namesrv.core.watch.hub import ChangeReader, Removals, RouteWatch, WatchHub

MESSAGE_TOPICS = 500
"""Most topics in a message: encoding them takes a single step of about a millisecond."""

MESSAGE_BYTES = 256 * 1024
"""Size from which on no further topic is put into a message."""

SHARED_BYTES = 8 * 1024 * 1024
"""Most bytes of routes and messages that are kept to be sent to the next watcher of the same topics."""

_RESPONSE = route_service_pb2.WatchTopicRoutesResponse
_CHANGE = route_service_pb2.TopicRouteChange
_BOOKMARKS = [
    b"".join(map(varint, (_RESPONSE.BOOKMARK_FIELD_NUMBER << 3, 1, _RESPONSE.WARM_FIELD_NUMBER << 3, is_warm)))
    + varint(_RESPONSE.REQUEST_COUNT_FIELD_NUMBER << 3)
    for is_warm in (False, True)
]
"""While warming up and afterwards, up to the number of the request messages."""

assert _RESPONSE.HEADER_FIELD_NUMBER == 1, "headers are framed as field 1"


class WatchMessages:
    """Makes the messages of all watches, as of the current revision."""

    def __init__(self, state: RouteState, hub: WatchHub, is_warm: Callable[[], bool]) -> None:
        self._state = state
        self._hub = hub
        self._is_warm = is_warm
        self._revision = -1
        self._shared: dict[tuple[str, str | None], tuple[Removals, bytes]] = {}
        """By topic and zone, those of the current revision: what left the route, and the encoded change."""
        self._joined: dict[tuple[bytes, ...], bytes] = {}
        """Messages of the current revision by their parts: watches with the same changes get one and the same."""
        self._shared_bytes = 0

    def next_message(self, watch: RouteWatch) -> bytes | None:
        """The next message to a watch. None if there is none yet; it will be woken. Raises Refused if it must end."""
        if watch.failure is not None:
            raise watch.failure
        if watch.is_filling:
            return None
        if not self._hub.is_current:
            self._hub.wake_later(watch)
            return None
        changes = self._take_changes(watch)
        if not changes and not watch.bookmark_due:
            return None
        is_all = not watch.pending
        watch.revision = self._state.revision
        watch.bookmark_due = not is_all  # even if the rest then changes nothing
        bookmark = (_BOOKMARKS[self._is_warm()], varint(watch.request_count)) if is_all else ()
        return self._message((*changes, *bookmark))

    def _message(self, parts: tuple[bytes, ...]) -> bytes:
        if self._revision != self._state.revision:  # a bookmark alone
            self._renew()
        joined = self._joined.get(parts)
        if joined is None:
            joined = self._joined[parts] = b"".join((self._state.header_fragment(), *parts))
            self._shared_bytes += len(joined)
        return joined

    def _renew(self) -> None:
        """Forgets what is not of the current revision, or takes too much memory."""
        if self._revision != self._state.revision or self._shared_bytes > SHARED_BYTES:
            self._revision, self._shared_bytes = self._state.revision, 0
            self._shared, self._joined = {}, {}

    def _take_changes(self, watch: RouteWatch) -> list[bytes]:
        """Takes the changes of a message from the pending topics; while warming up, none of an unknown topic."""
        zone_name, is_warm = watch.subscription.zone_name, self._is_warm()
        changes: list[bytes] = []
        size = 0
        while watch.pending and len(changes) < MESSAGE_TOPICS and size < MESSAGE_BYTES:
            topic, removals = self._hub.take_pending(watch)
            if not watch.subscription.has(topic):
                continue  # it was removed while it was pending
            change = self._current(topic, zone_name, removals)
            if change is None and is_warm:
                change = _change(topic, None, ())
            if change is not None:
                changes.append(change)
                size += len(change)
        return changes

    def _current(self, topic: str, zone_name: str | None, removals: Removals) -> bytes | None:
        """A TopicRouteChange, framed as the field changes; None if there is no route, and nothing left it."""
        self._renew()
        shared = self._shared.get((topic, zone_name))
        if shared is not None and shared[0] == removals:
            return shared[1]
        route = self._state.route(topic, zone_name)
        if route is None and not removals:
            return None
        encoded = _change(topic, route, self._of_absent(topic, removals))
        self._shared[topic, zone_name] = removals, encoded
        self._shared_bytes += len(encoded)
        return encoded

    def _of_absent(self, topic: str, removals: Removals) -> list[bytes]:
        """Encodes removals: the last of each broker that is not in the route again.

        The loss of a group's queues of the topic is included also if the group has some again: they may be other
        brokers'.
        """
        if not removals:
            return []
        tables = self._state.tables
        brokers = (queue_data.broker for queue_data in self._state.queue_datas_of(topic))
        addrs = {broker: set(tables.broker_addr_table[broker].addrs.values()) for broker in brokers}
        latest = {(broker, addr): fragment for broker, addr, fragment in removals}
        return [fragment for (broker, addr), fragment in latest.items() if addr not in addrs.get(broker, ())]


def _change(topic: str, route: bytes | None, removals: Sequence[bytes]) -> bytes:
    routes = () if route is None else (frame(_CHANGE.ROUTE_FIELD_NUMBER, route),)
    name = frame(_CHANGE.TOPIC_FIELD_NUMBER, topic.encode())
    return frame(_RESPONSE.CHANGES_FIELD_NUMBER, name, *routes, *removals)


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

_CHANGES_RESPONSE = route_service_pb2.StreamRouteChangesResponse
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
            yield start + frame(_CHANGES_RESPONSE.CHANGES_FIELD_NUMBER, changes) if changes else b""
        if change.revision % CHANGE_SLICE == 0:
            yield b""
        change = change.next
    yield _header(identity, up_to_revision)


def _header(identity: NamesrvIdentity, revision: int) -> bytes:
    header = route_data_pb2.NamesrvHeader(namesrv_name=identity.name, epoch=identity.epoch, revision=revision)
    return frame(_CHANGES_RESPONSE.HEADER_FIELD_NUMBER, header.SerializeToString())


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
            made = _ROW(broker_put=broker_data(group))
        case GroupChange(key=BrokerKey(cluster, name)):
            gone = route_service_pb2.BrokerGroupRemoval(cluster_name=cluster, broker_name=name, reason=reason)
            made = _ROW(group_removed=gone)
        case LiveChange(after=BrokerLiveInfo() as live):
            made = _ROW(live_put=broker_live_info(live, applied_at_millis))
        case LiveChange(live=live):
            left = broker_removal(live.broker, live.broker_id, live.broker_addr, row.reason)
            made = _ROW(broker_removed=left)
        case ClusterChange(after=frozenset() as names):
            made = _ROW(cluster_put=cluster_data(row.key, names))
        case ClusterChange():
            made = _ROW(cluster_removed=route_service_pb2.ClusterRemoval(cluster_name=row.key, reason=reason))
        case FilterServersChange():
            made = _ROW(filter_put=filter_server_data(row.key, row.after or ()))
    return made


# Messages after a snapshot that is followed: each change, normalised, and bookmarks.

_SNAPSHOT_RESPONSE = route_service_pb2.StreamRouteSnapshotResponse

assert _SNAPSHOT_RESPONSE.HEADER_FIELD_NUMBER == _CHANGES_RESPONSE.HEADER_FIELD_NUMBER, "headers alike"


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
