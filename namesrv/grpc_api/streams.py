"""The streams of RouteService: watches, snapshots, pins and changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from namesrv_api.v1 import route_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.permits import Permission, Principal
from groundwork.shares import Shares
from groundwork.topic_names import MAX_RETRY_TOPIC_LENGTH, check_name
from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.access import need, sharer_of
from namesrv.app.watches import WatchDispatcher, WatchStream
from namesrv.app.worker import Worker
from namesrv.app.writer import settled
from namesrv.core.change_stream import change_messages, follow_messages, replica_message
from namesrv.core.errors import EpochChanged, InvalidField, LimitExceeded, ShuttingDown
from namesrv.core.pace import paced
from namesrv.core.pins import Pins
from namesrv.core.replica_feed import ReplicaFeed
from namesrv.core.route_view import RouteView
from namesrv.core.snapshot import ALL_TABLES, WHOLE, RouteSnapshot, RouteTable, SnapshotPart
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch import Follower, RouteWatch, Subscription
from namesrv.engines.api import shared_writer
from namesrv.grpc_api.handlers import Context

# Rules on requests of RouteService, each with an error that names field, problem and limit.


def batch_topics(request: route_service_pb2.BatchGetTopicRoutesRequest) -> Iterator[tuple[str, str]]:
    """The topics of a batch, each once, with the name of the field it is in. The names themselves are not checked.

    Raises:
        InvalidField: There are none.
        LimitExceeded: There are too many.
    """
    count = len(request.topics)
    if count == 0:
        raise InvalidField("topics", f"is empty; name 1 to {limits.MAX_BATCH_TOPICS} topics")
    if count > limits.MAX_BATCH_TOPICS:
        raise LimitExceeded("topics of one batch", count, limits.MAX_BATCH_TOPICS)
    seen: set[str] = set()
    for index, topic in enumerate(request.topics):
        if topic not in seen:
            seen.add(topic)
            yield f"topics[{index}]", topic


def zone_name(
    request: route_service_pb2.GetTopicRouteRequest
    | route_service_pb2.BatchGetTopicRoutesRequest
    | route_service_pb2.WatchTopicRoutesRequest,
) -> str | None:
    """The zone that a lookup or a watch asks from; None if it names none. Raises InvalidField."""
    if not request.HasField("zone_name"):
        return None
    field_rules.check_name("zone_name", request.zone_name)
    return request.zone_name


def snapshot_part(request: route_service_pb2.StreamRouteSnapshotRequest) -> SnapshotPart:
    """The tables and the shard that a request asks for; the whole if it names none. Raises InvalidField."""
    shard, tables = snapshot_shard(request), _route_tables(request.tables)
    if request.HasField("shard") and RouteTable.TOPIC_QUEUES not in tables:
        raise InvalidField("shard", "is set, but tables leaves ROUTE_TABLE_TOPIC_QUEUES out; all else is in no shard")
    return replace(shard, tables=tables)


def snapshot_shard(
    request: route_service_pb2.StreamRouteSnapshotRequest | route_service_pb2.StreamRouteChangesRequest,
) -> SnapshotPart:
    """The shard that a request asks for; the whole if it names none. Raises InvalidField."""
    if not request.HasField("shard"):
        return WHOLE
    shard = request.shard
    for part in ("count", "index"):
        if not shard.HasField(part):
            raise InvalidField(f"shard.{part}", "is missing; a shard needs index and count")
    if not 1 <= shard.count <= limits.MAX_SHARDS:
        raise InvalidField("shard.count", f"is {shard.count}, must be 1 to {limits.MAX_SHARDS}")
    if not 0 <= shard.index < shard.count:
        raise InvalidField("shard.index", f"is {shard.index}, must be 0 to {shard.count - 1}: below shard.count")
    return SnapshotPart(shard.index, shard.count)


def resume_point(field: str, point: route_service_pb2.ResumePoint) -> route_service_pb2.ResumePoint:
    """The point that changes are asked for after. Raises InvalidField."""
    if not point.epoch:
        raise InvalidField(f"{field}.epoch", "is missing; take epoch and revision from a header")
    if not point.HasField("revision"):
        raise InvalidField(f"{field}.revision", "is missing; take epoch and revision from a header")
    if point.revision < 0:
        raise InvalidField(f"{field}.revision", f"is {point.revision}, must not be negative")
    return point


def pin_lease_seconds(request: route_service_pb2.PinRouteSnapshotRequest) -> int:
    """How long a pin is to be kept. Raises InvalidField."""
    if not request.HasField("lease_seconds"):
        return limits.DEFAULT_PIN_LEASE_SECONDS
    seconds, lowest, highest = request.lease_seconds, limits.MIN_PIN_LEASE_SECONDS, limits.MAX_PIN_LEASE_SECONDS
    if not lowest <= seconds <= highest:
        raise InvalidField("lease_seconds", f"is {seconds}, must be {lowest} to {highest}")
    return seconds


def _route_tables(asked: Iterable[int]) -> frozenset[RouteTable]:
    tables: set[RouteTable] = set()
    for index, value in enumerate(asked):
        field = f"tables[{index}]"
        try:
            table = RouteTable(value)
        except ValueError:
            highest = max(table.value for table in RouteTable)
            raise InvalidField(field, f"is {value}, must be a RouteTable, 1 to {highest}") from None
        if table in tables:
            raise InvalidField(field, f"is ROUTE_TABLE_{table.name} again; name each table once")
        tables.add(table)
    return frozenset(tables) or ALL_TABLES


# The rules for readers of changes that go on from a revision: the same for every call.


def resume_revision(state: RouteView, field: str, point: pb.ResumePoint) -> int:
    """The revision after which a reader wants the changes.

    Raises:
        InvalidField: A part of the point is missing or negative.
        EpochChanged: It is of another epoch.
        RevisionCompacted: The change log does not reach back to it, or has not reached it.
    """
    after = resume_point(field, point)
    if after.epoch != state.identity.epoch:
        raise EpochChanged(after.epoch, state.identity.epoch)
    state.change_log.check_reaches(after.revision)
    return after.revision


# The call of RouteService that watches topics.


class WatchCalls:
    """Each stream sends what the core has for it, and waits to be woken."""

    def __init__(self, state: RouteView, warm_up: WarmUp, watchers: WatchDispatcher, reader: Worker) -> None:
        self._state = state
        self._warm_up = warm_up
        self._watch_streams = watchers
        self._reader = reader

    async def WatchTopicRoutes(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.WatchTopicRoutesRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """The routes of the subscribed topics, then each change of them as it happens."""
        subscription = await self._reader.run(partial(_subscription, request))
        after = resume_revision(self._state, "resume_after", request.resume_after) if _resumes(request) else None
        del request  # with ten thousand names it is larger than all else that an open watch holds
        opening = self._watch_streams.watching(
            subscription, after, context.peer(), shared_writer(context), sharer_of(context)
        )
        async with opening as watcher:
            assert isinstance(watcher.reader, RouteWatch), "that is what was opened"
            while True:
                watcher.woken.clear()
                while message := self._watch_streams.messages.next_message(watcher.reader):
                    yield message
                    self._watch_streams.sent(watcher)
                    await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
                await watcher.idle()


def _resumes(request: pb.WatchTopicRoutesRequest) -> bool:
    return request.HasField("resume_after")


def _subscription(request: pb.WatchTopicRoutesRequest) -> Subscription:
    """What a request asks to watch.

    Raises:
        InvalidField: It names nothing, or something that breaks a rule.
        LimitExceeded: It names too much.
    """
    for what, names, most in (
        ("topics of one watch", request.topics, limits.MAX_WATCH_TOPICS),
        ("prefixes of one watch", request.topic_prefixes, limits.MAX_WATCH_PREFIXES),
    ):
        if len(names) > most:
            raise LimitExceeded(what, len(names), most)
    if not request.topics and not request.topic_prefixes:
        raise InvalidField("topics", "is empty; name topics, or beginnings of their names in topic_prefixes")
    for index, prefix in enumerate(request.topic_prefixes):
        _check_prefix(f"topic_prefixes[{index}]", prefix)
    for index, topic in paced(enumerate(request.topics)):
        field_rules.check_topic(f"topics[{index}]", topic)
    prefixes = tuple(dict.fromkeys(request.topic_prefixes))
    return Subscription(frozenset(request.topics), prefixes, zone_name(request))


def _check_prefix(field: str, prefix: str) -> None:
    """Checks that topics can begin like this; all do with the empty one. Raises InvalidField."""
    try:
        if prefix:
            check_name(prefix, MAX_RETRY_TOPIC_LENGTH)
    except ValueError as error:
        raise InvalidField(field, str(error)) from None


# The calls of RouteService that stream whole tables: as they are, as they were pinned, and what changed since.

REPLICA_BOOKMARK_SECONDS = 1.0
"""A read-only copy is told so often that nothing has changed: it knows from that how old it is."""


class SnapshotCalls:
    """Streams are joined from fragments in the core; every stream gives the event loop back between messages."""

    def __init__(
        self, state: RouteView, pins: Pins, watchers: WatchDispatcher, reader: Worker, streams: Shares
    ) -> None:
        self._reader = reader
        self._state = state
        self._pins = pins
        self._watch_streams = watchers
        self._streams = streams
        """Streams that are open: whatever they have yet to send stays in memory."""

    async def PinRouteSnapshot(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.PinRouteSnapshotRequest, context: Context
    ) -> pb.PinRouteSnapshotResponse:
        """Holds the tables as they are now."""
        lease_seconds = pin_lease_seconds(request)
        if self._state.frozen:
            raise ShuttingDown
        state = self._state
        await settled(state)
        pin_id = self._pins.pin(state.revision, state.snapshot, lease_seconds, sharer_of(context))
        return pb.PinRouteSnapshotResponse(header=self._state.header(), pin_id=pin_id, lease_seconds=lease_seconds)

    async def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """All tables at one revision, or a part of them, and the changes after it if they are asked for."""
        part = snapshot_part(request)
        _check_resuming(request)
        _check_for_replica(request)
        sharer = sharer_of(context)
        if not request.follow:
            await settled(self._state)
            with self._streams.holding(sharer), self._snapshot(request, part) as snapshot:
                async for message in self._made(snapshot.messages(part)):
                    yield message
            return
        feed = self._watch_streams.replica_feed() if request.for_replica else None
        with self._watch_streams.following(context.peer(), sharer) as watcher:
            if request.HasField("resume_after"):
                watcher.reader.revision = resume_revision(self._state, "resume_after", request.resume_after)
            else:
                await settled(self._state)
                with self._streams.holding(sharer), self._snapshot(request, part) as snapshot:
                    watcher.reader.revision = snapshot.revision
                    self._state.change_log.check_reaches(snapshot.revision)
                    messages = self._made(snapshot.messages(part))
                    yield await anext(messages)
                    if feed is not None:
                        for rows in feed.opening():
                            yield replica_message(self._state.identity, snapshot.revision, rows)
                            await asyncio.sleep(0)
                    async for message in messages:
                        yield message
                del snapshot  # it would be held as long as it is followed
            del request  # likewise
            async for message in self._following(watcher, part, feed):
                yield message

    async def StreamRouteChanges(  # noqa: N802
        self, request: pb.StreamRouteChangesRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """What changed after one revision up to another, or a shard of it."""
        shard = snapshot_shard(request)
        after = resume_revision(self._state, "after", request.after)
        log, identity = self._state.change_log, self._state.identity
        last = log.last.revision
        up_to = request.up_to_revision if request.HasField("up_to_revision") else last
        if not after <= up_to <= last:
            raise InvalidField("up_to_revision", f"is {up_to}, must be {after} to {last}")
        with self._streams.holding(sharer_of(context)):
            async for message in _giving_way(change_messages(log.after(after), up_to, identity, shard)):
                yield message

    async def _made(self, messages: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Messages of what cannot change, each made on the thread when the one before has been sent."""
        while (message := await self._reader.run(partial(next, messages, None))) is not None:
            yield message

    async def _following(
        self, watcher: WatchStream, part: SnapshotPart, feed: ReplicaFeed | None
    ) -> AsyncIterator[bytes]:
        """The changes after what a follower has been sent, with a bookmark whenever it has been sent everything."""
        log, identity, reader = self._state.change_log, self._state.identity, watcher.reader
        assert isinstance(reader, Follower), "the others watch topics"
        while True:
            watcher.woken.clear()
            async for message in _giving_way(follow_messages(log, reader, identity, part, feed)):
                yield message
            self._watch_streams.sent(watcher)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if feed is None else REPLICA_BOOKMARK_SECONDS):
                    await watcher.woken.wait()

    @contextmanager
    def _snapshot(self, request: pb.StreamRouteSnapshotRequest, part: SnapshotPart) -> Iterator[RouteSnapshot]:
        """The tables as they were pinned, or as they are now."""
        if not request.HasField("pin_id"):
            yield self._state.snapshot(part.tables)
            return
        with self._pins.reading(request.pin_id) as snapshot:
            yield snapshot


def _check_resuming(request: pb.StreamRouteSnapshotRequest) -> None:
    """Checks that a request to go on asks for nothing else. Raises InvalidField."""
    if not request.HasField("resume_after"):
        return
    if not request.follow:
        raise InvalidField("resume_after", "is set without follow; StreamRouteChanges gives changes up to a revision")
    if request.HasField("pin_id"):
        raise InvalidField("resume_after", "is set, and so is pin_id; give one of them")


def _check_for_replica(request: pb.StreamRouteSnapshotRequest) -> None:
    """Checks that a copy asks for everything, and may have it. Raises InvalidField or NotPermitted."""
    if not request.for_replica:
        return
    if not request.follow:
        raise InvalidField("for_replica", "is set without follow; a copy has to be kept up")
    given = {"pin_id": request.HasField("pin_id"), "shard": request.HasField("shard"), "tables": request.tables}
    for field, is_given in given.items():
        if is_given:
            raise InvalidField("for_replica", f"is set, and so is {field}; a copy is of everything, as it is now")
    need(partial(Principal.check, permission=Permission.ADMINISTER))


async def _giving_way(messages: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Hands messages on and gives the event loop back after each; empty ones are pauses and are not handed on."""
    for message in messages:
        if message:
            yield message
        await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
