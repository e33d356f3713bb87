"""The streams of RouteService: watches, snapshots, pins and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Self

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app.access import sharer_of
from namesrv.app.field_rules import ANYTHING, NAME, NOT_NEGATIVE, PREFIX, TOPIC, between, check, check_all, given
from namesrv.app.watches import WatchStream, WatchStreams
from namesrv.app.worker import Worker
from namesrv.core.change_stream import change_messages, follow_messages
from namesrv.core.errors import Reason, Refused, invalid_field, limit_exceeded
from namesrv.core.pace import paced
from namesrv.core.pins import Pins
from namesrv.core.snapshot import ALL_TABLES, RouteSnapshot
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch.hub import RouteWatch
from namesrv.core.watch.subscription import Subscription, SubscriptionChange
from namesrv.engines.api import engine_call
from namesrv.grpc_api.handlers import Context
from namesrv_common.server.shares import Sharer, Shares

# Rules on requests of RouteService, each with an error that names field, problem and limit.


def batch_topics(request: pb.BatchGetTopicRoutesRequest) -> Iterator[tuple[str, str]]:
    """The topics of a batch, each once, with the name of the field it is in. The names themselves are not checked.

    Raises:
        INVALID_FIELD: There are none.
        LIMIT_EXCEEDED: There are too many.
    """
    count = len(request.topics)
    if count == 0:
        raise invalid_field("topics", f"is empty; name 1 to {limits.MAX_BATCH_TOPICS} topics")
    if count > limits.MAX_BATCH_TOPICS:
        raise limit_exceeded("topics of one batch", count, limits.MAX_BATCH_TOPICS)
    seen: set[str] = set()
    for index, topic in enumerate(request.topics):
        if topic not in seen:
            seen.add(topic)
            yield f"topics[{index}]", topic


def zone_name(
    request: pb.GetTopicRouteRequest | pb.BatchGetTopicRoutesRequest | pb.WatchTopicRoutesRequest,
) -> str | None:
    """The zone that a lookup or a watch asks from; None if it names none. Raises INVALID_FIELD."""
    name: str | None = given(request, "zone_name")
    check(("zone_name", name, NAME))
    return name


def _route_tables(asked: Iterable[pb.RouteTable]) -> frozenset[pb.RouteTable]:
    """The tables that a request asks for; all if it names none. Raises INVALID_FIELD."""
    tables: set[pb.RouteTable] = set()
    for index, table in enumerate(asked):
        if table not in ALL_TABLES:
            raise invalid_field(f"tables[{index}]", f"is {table}, must be a RouteTable, 1 to {max(ALL_TABLES)}")
        if table in tables:
            raise invalid_field(f"tables[{index}]", f"is {pb.RouteTable.Name(table)} again; name each table once")
        tables.add(table)
    return frozenset(tables) or ALL_TABLES


def resume_revision(state: RouteState, field: str, point: pb.ResumePoint) -> int:
    """The revision after which a reader wants the changes, by the same rules for every call.

    Raises:
        INVALID_FIELD: The epoch is missing, or the revision negative.
        EPOCH_CHANGED: It is of another epoch.
        REVISION_COMPACTED: The change log does not reach back to it.
        REVISION_NOT_REACHED: It is of this epoch and still to come.
    """
    missing = "is missing; take epoch and revision from a header"
    check(
        (f"{field}.epoch", point.epoch or None, ANYTHING._replace(missing=missing)),
        (f"{field}.revision", point.revision, NOT_NEGATIVE),
    )
    if point.epoch != (epoch := state.identity.epoch):
        text = f"the epoch is {epoch}, not {point.epoch[:64]!r}: the name server has restarted; start from a snapshot"
        raise Refused(Reason.EPOCH_CHANGED, text, epoch=epoch)
    state.change_log.check_reaches(point.revision)
    return point.revision


# The call of RouteService that watches topics.


class WatchCalls:
    """Each stream sends what the core has for it, and waits to be woken."""

    def __init__(self, state: RouteState, watchers: WatchStreams, reader: Worker) -> None:
        self._state = state
        self._watch_streams = watchers
        self._reader = reader

    async def WatchTopicRoutes(
        self, requests: AsyncIterator[pb.WatchTopicRoutesRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """The routes of the subscribed topics, then each change of them as it happens."""
        sharer = sharer_of(context)
        subscription, after = await self._opening(await anext(requests, None), sharer.name)
        opening = self._watch_streams.watching(subscription, after, context.peer(), engine_call(context), sharer)
        async with opening as watcher, _LaterRequests(requests, watcher.woken) as later:
            watch = watcher.reader
            assert isinstance(watch, RouteWatch), "that is what was opened"
            while True:
                watcher.woken.clear()
                while message := self._watch_streams.messages.next_message(watch):
                    yield message
                    self._watch_streams.sent(watcher)
                    await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
                # Only now: a client that reads no answers must not have its requests read.
                if not await self._apply(later, watch, sharer):
                    await watcher.idle()

    async def _apply(self, later: _LaterRequests, watch: RouteWatch, sharer: Sharer) -> bool:
        """Applies the next request, if it has come; returns whether it has."""
        request = later.take()
        if request is None:
            return False
        try:
            change = await self._reader.run(partial(_changed, watch.subscription, request), sharer.name)
        except Refused as error:
            if error.reason == Reason.INVALID_FIELD:
                error.metadata["request"] = str(watch.request_count + 1)
            raise
        del request
        await self._watch_streams.resubscribe(watch, change, sharer)
        later.read_next()
        return True

    async def _opening(self, request: pb.WatchTopicRoutesRequest | None, owner: str) -> tuple[Subscription, int | None]:
        """What the first request asks for, and the revision to begin after, if it names one."""
        if request is None:
            raise invalid_field("topics", "is empty, because the stream has no message; name topics or prefixes")
        subscription = await self._reader.run(partial(_subscription, request), owner)
        if not request.HasField("resume_after"):
            return subscription, None
        return subscription, resume_revision(self._state, "resume_after", request.resume_after)


class _LaterRequests:
    """The requests of a watch after its first, read one at a time while it is open."""

    def __init__(self, requests: AsyncIterator[pb.WatchTopicRoutesRequest], woken: asyncio.Event) -> None:
        self._requests = requests
        self._woken = woken
        self._reading: asyncio.Task[pb.WatchTopicRoutesRequest | None] | None = None

    async def __aenter__(self) -> Self:
        """Reads for as long as the context lasts."""
        self.read_next()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def read_next(self) -> None:
        """Waits for the next one; the watch is woken when it has come."""
        self._reading = asyncio.create_task(self._next(), name="watch-requests")
        self._reading.add_done_callback(lambda _: self._woken.set())

    def take(self) -> pb.WatchTopicRoutesRequest | None:
        """The request that has come; None if there is none. Raises what is wrong with it."""
        if self._reading is None or not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def _next(self) -> pb.WatchTopicRoutesRequest | None:
        return await anext(self._requests, None)


def _subscription(request: pb.WatchTopicRoutesRequest) -> Subscription:
    """What the first request of a watch asks for.

    Raises:
        INVALID_FIELD: It names nothing, or something that breaks a rule.
        LIMIT_EXCEEDED: It names too much.
    """
    for field, names in (
        ("removed_topics", request.removed_topics),
        ("removed_topic_prefixes", request.removed_topic_prefixes),
    ):
        if names:
            raise invalid_field(field, "is set in the first message of a watch, which has nothing to remove from")
    if not request.topics and not request.topic_prefixes:
        raise invalid_field("topics", "is empty; name topics, or beginnings of their names in topic_prefixes")
    _check_counts(len(request.topics), len(request.topic_prefixes))
    _check_names(request)
    prefixes = tuple(dict.fromkeys(request.topic_prefixes))
    return Subscription(frozenset(request.topics), prefixes, zone_name(request))


def _changed(before: Subscription, request: pb.WatchTopicRoutesRequest) -> SubscriptionChange:
    """What a later request of a watch changes.

    Raises:
        INVALID_FIELD: It names something that breaks a rule.
        LIMIT_EXCEEDED: It names too much, or the watch would have too much.
    """
    for field in ("resume_after", "zone_name"):
        if request.HasField(field):
            raise invalid_field(field, "is set in a later message of a watch; only the first may set it")
    _check_counts(len(request.removed_topics), len(request.removed_topic_prefixes))
    _check_counts(len(request.topics), len(request.topic_prefixes))
    _check_names(request)
    removed = set(request.removed_topic_prefixes)
    prefixes = dict.fromkeys(prefix for prefix in before.prefixes if prefix not in removed)
    prefixes |= dict.fromkeys(request.topic_prefixes)
    topics = (before.topics - set(request.removed_topics)) | set(request.topics)
    _check_counts(len(topics), len(prefixes))
    return SubscriptionChange.between(before, Subscription(topics, tuple(prefixes), before.zone_name))


def _check_counts(topic_count: int, prefix_count: int) -> None:
    for what, count, most in (
        ("topics of one watch", topic_count, limits.MAX_WATCH_TOPICS),
        ("prefixes of one watch", prefix_count, limits.MAX_WATCH_PREFIXES),
    ):
        if count > most:
            raise limit_exceeded(what, count, most)


def _check_names(request: pb.WatchTopicRoutesRequest) -> None:
    prefixes = ((f"topic_prefixes[{index}]", prefix, PREFIX) for index, prefix in enumerate(request.topic_prefixes))
    topics = ((f"topics[{index}]", topic, TOPIC) for index, topic in enumerate(request.topics))
    check_all(paced(chain(prefixes, topics)))


# The calls of RouteService that stream whole tables: as they are, as they were pinned, and what changed since.


class SnapshotCalls:
    """Streams are joined from fragments in the core; every stream gives the event loop back between messages."""

    def __init__(
        self, state: RouteState, warm_up: WarmUp, pins: Pins, watchers: WatchStreams, *, reader: Worker, streams: Shares
    ) -> None:
        self._reader = reader
        self._state = state
        self._warm_up = warm_up
        self._pins = pins
        self._watch_streams = watchers
        self._streams = streams
        """Streams that are open: whatever they have yet to send stays in memory."""

    async def PinRouteSnapshot(
        self, request: pb.PinRouteSnapshotRequest, context: Context
    ) -> pb.PinRouteSnapshotResponse:
        """Holds the tables as they are now."""
        lease_millis = request.lease_millis if request.HasField("lease_millis") else limits.DEFAULT_PIN_LEASE_MILLIS
        check(("lease_millis", lease_millis, between(limits.MIN_PIN_LEASE_MILLIS, limits.MAX_PIN_LEASE_MILLIS)))
        state, warm, owner = self._state, self._warm_up.is_warm(), sharer_of(context)
        state.check_not_frozen()
        pin_id = self._pins.pin(
            state.revision, state.snapshot, lease_millis / 1000, owner, follows=request.follow, warm=warm
        )
        return pb.PinRouteSnapshotResponse(header=state.header(), pin_id=pin_id, lease_millis=lease_millis, warm=warm)

    async def ReleaseRouteSnapshot(
        self, request: pb.ReleaseRouteSnapshotRequest, context: Context
    ) -> pb.ReleaseRouteSnapshotResponse:
        """Ends a pin."""
        del context
        released = self._pins.release(request.pin_id)
        return pb.ReleaseRouteSnapshotResponse(header=self._state.header(), released=released)

    async def StreamRouteSnapshot(
        self, request: pb.StreamRouteSnapshotRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """All tables at one revision, or some of them, and the changes after it if they are asked for."""
        tables = _route_tables(request.tables)
        _check_resuming(request)
        sharer = sharer_of(context)
        if not request.follow:
            with self._streams.holding(sharer), self._snapshot(request) as snapshot:
                async for message in made_on(self._reader, snapshot.messages(tables), sharer.name):
                    yield message
            return
        with self._watch_streams.following("StreamRouteSnapshot", context.peer(), sharer) as watcher:
            if request.HasField("resume_after"):
                watcher.reader.revision = resume_revision(self._state, "resume_after", request.resume_after)
            else:
                with self._streams.holding(sharer), self._snapshot(request) as snapshot:
                    watcher.reader.revision = snapshot.revision
                    self._state.change_log.check_reaches(snapshot.revision)
                    async for message in made_on(self._reader, snapshot.messages(tables), sharer.name):
                        yield message
                del snapshot  # it would be held as long as it is followed
            del request  # likewise
            async for message in self._following(watcher, tables):
                yield message

    async def StreamRouteChanges(self, request: pb.StreamRouteChangesRequest, context: Context) -> AsyncIterator[bytes]:
        """What changed after one revision up to another."""
        after = resume_revision(self._state, "after", request.after)
        log, identity = self._state.change_log, self._state.identity
        last = log.last.revision
        up_to = request.up_to_revision if request.HasField("up_to_revision") else last
        if not after <= up_to <= last:
            raise invalid_field("up_to_revision", f"is {up_to}, must be {after} to {last}")
        with self._streams.holding(sharer_of(context)):
            async for message in giving_way(change_messages(log.after(after), up_to, identity)):
                yield message

    async def _following(self, watcher: WatchStream, tables: Collection[pb.RouteTable]) -> AsyncIterator[bytes]:
        """The changes after what a follower has been sent, with a bookmark whenever it has been sent everything."""
        log, identity, reader = self._state.change_log, self._state.identity, watcher.reader
        while True:
            watcher.woken.clear()
            async for message in giving_way(follow_messages(log, reader, identity, tables)):
                yield message
            self._watch_streams.sent(watcher)
            await watcher.woken.wait()

    @contextmanager
    def _snapshot(self, request: pb.StreamRouteSnapshotRequest) -> Iterator[RouteSnapshot]:
        """The tables as they were pinned, or as they are now."""
        if not request.HasField("pin_id"):
            yield replace(self._state.snapshot(), warm=self._warm_up.is_warm())
            return
        with self._pins.reading(request.pin_id) as snapshot:
            yield snapshot


def _check_resuming(request: pb.StreamRouteSnapshotRequest) -> None:
    """Checks that a request to continue asks for nothing else. Raises INVALID_FIELD."""
    if not request.HasField("resume_after"):
        return
    if not request.follow:
        raise invalid_field("resume_after", "is set without follow; StreamRouteChanges gives changes up to a revision")
    if request.HasField("pin_id"):
        raise invalid_field("resume_after", "is set, and so is pin_id; give one of them")


async def made_on(reader: Worker, messages: Iterator[bytes], owner: str) -> AsyncIterator[bytes]:
    """Messages of what cannot change, each made on the thread when the one before has been sent."""
    while (message := await reader.run(partial(next, messages, None), owner)) is not None:
        yield message


async def giving_way(messages: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Forwards messages and gives the event loop back after each. Empty ones are pauses and are not forwarded."""
    for message in messages:
        if message:
            yield message
        await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
