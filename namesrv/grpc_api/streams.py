"""The streams of RouteService: watches, snapshots, pins and changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

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
from namesrv.core.snapshot import ALL_TABLES, RouteSnapshot, RouteTable
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch.hub import Follower, RouteWatch
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


def _route_tables(asked: Iterable[int]) -> frozenset[RouteTable]:
    """The tables that a request asks for; all if it names none. Raises INVALID_FIELD."""
    tables: set[RouteTable] = set()
    for index, value in enumerate(asked):
        field = f"tables[{index}]"
        try:
            table = RouteTable(value)
        except ValueError:
            highest = max(table.value for table in RouteTable)
            raise invalid_field(field, f"is {value}, must be a RouteTable, 1 to {highest}") from None
        if table in tables:
            raise invalid_field(field, f"is ROUTE_TABLE_{table.name} again; name each table once")
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


# The requests of a watch.

Update = asyncio.Future[pb.WatchTopicRoutesRequest | None]
"""The next request of a watch. None: it sends no more."""


def _next_of(requests: AsyncIterator[pb.WatchTopicRoutesRequest], woken: asyncio.Event) -> Update:
    """Begins to read the next request. The watch is woken when it has come."""
    update: Update = asyncio.ensure_future(anext(requests, None))
    update.add_done_callback(lambda _: woken.set())
    return update


def _subscription(request: pb.WatchTopicRoutesRequest) -> Subscription:
    """What the first request of a watch asks for.

    Raises:
        INVALID_FIELD: It names nothing, or something that breaks a rule.
        LIMIT_EXCEEDED: It names too much.
    """
    for field in ("removed_topics", "removed_topic_prefixes"):
        if getattr(request, field):
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
    if topic_count > limits.MAX_WATCH_TOPICS:
        raise limit_exceeded("topics of one watch", topic_count, limits.MAX_WATCH_TOPICS)
    if prefix_count > limits.MAX_WATCH_PREFIXES:
        raise limit_exceeded("prefixes of one watch", prefix_count, limits.MAX_WATCH_PREFIXES)


def _check_names(request: pb.WatchTopicRoutesRequest) -> None:
    prefixes = ((f"topic_prefixes[{index}]", prefix, PREFIX) for index, prefix in enumerate(request.topic_prefixes))
    topics = ((f"topics[{index}]", topic, TOPIC) for index, topic in enumerate(request.topics))
    check_all(paced(chain(prefixes, topics)))


# The calls of RouteService that watch topics, and that stream whole tables: as they are, as they were pinned, and what
# changed since.


@dataclass
class StreamCalls:
    """Streams are joined from fragments in the core; every stream gives the event loop back between messages."""

    state: RouteState
    warm_up: WarmUp
    pins: Pins
    watchers: WatchStreams
    reader: Worker
    streams: Shares
    """Of streams that are open: whatever they have yet to send stays in memory."""

    async def WatchTopicRoutes(
        self, requests: AsyncIterator[pb.WatchTopicRoutesRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """The routes of the subscribed topics, then each change of them as it happens."""
        sharer = sharer_of(context)
        subscription, after = await self._opening(await anext(requests, None), sharer.name)
        opening = self.watchers.watching(subscription, after, context.peer(), engine_call(context), sharer)
        async with opening as watcher:
            watch, update = watcher.reader, _next_of(requests, watcher.woken)
            assert isinstance(watch, RouteWatch), "that is what was opened"
            try:
                while True:
                    watcher.woken.clear()
                    while message := self.watchers.messages.next_message(watch):
                        yield message
                        self.watchers.sent(watcher)
                        await asyncio.sleep(0)  # a transport that takes it at once does not give the loop back
                    # Only now: a client that reads no answers must not have its requests read.
                    if update.done() and (request := update.result()) is not None:
                        await self._apply(request, watch, sharer)
                        del request
                        update = _next_of(requests, watcher.woken)
                    else:
                        await watcher.idle()
            finally:
                update.cancel()
                await asyncio.gather(update, return_exceptions=True)

    async def _apply(self, request: pb.WatchTopicRoutesRequest, watch: RouteWatch, sharer: Sharer) -> None:
        try:
            change = await self.reader.run(partial(_changed, watch.subscription, request), sharer.name)
        except Refused as error:
            if error.reason == Reason.INVALID_FIELD:
                error.metadata["request"] = str(watch.request_count + 1)
            raise
        await self.watchers.resubscribe(watch, change, sharer)

    async def _opening(self, request: pb.WatchTopicRoutesRequest | None, owner: str) -> tuple[Subscription, int | None]:
        """What the first request asks for, and the revision to begin after, if it names one."""
        if request is None:
            raise invalid_field("topics", "is empty, because the stream has no message; name topics or prefixes")
        subscription = await self.reader.run(partial(_subscription, request), owner)
        if not request.HasField("resume_after"):
            return subscription, None
        return subscription, resume_revision(self.state, "resume_after", request.resume_after)

    async def PinRouteSnapshot(
        self, request: pb.PinRouteSnapshotRequest, context: Context
    ) -> pb.PinRouteSnapshotResponse:
        """Holds the tables as they are now."""
        millis = request.lease_millis if request.HasField("lease_millis") else limits.DEFAULT_PIN_LEASE_MILLIS
        check(("lease_millis", millis, between(limits.MIN_PIN_LEASE_MILLIS, limits.MAX_PIN_LEASE_MILLIS)))
        state, warm, owner = self.state, self.warm_up.is_warm(), sharer_of(context)
        state.check_not_frozen()
        pin = self.pins.pin(state.revision, state.snapshot, millis / 1000, owner, follows=request.follow, warm=warm)
        return pb.PinRouteSnapshotResponse(header=state.header(), pin_id=pin, lease_millis=millis, warm=warm)

    async def ReleaseRouteSnapshot(
        self, request: pb.ReleaseRouteSnapshotRequest, context: Context
    ) -> pb.ReleaseRouteSnapshotResponse:
        """Ends a pin."""
        del context
        released = self.pins.release(request.pin_id)
        return pb.ReleaseRouteSnapshotResponse(header=self.state.header(), released=released)

    async def StreamRouteSnapshot(
        self, request: pb.StreamRouteSnapshotRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """All tables at one revision, or some of them, and the changes after it if they are asked for."""
        tables = _route_tables(request.tables)
        _check_resuming(request)
        sharer = sharer_of(context)
        if not request.follow:
            with self.streams.holding(sharer), self._snapshot(request) as snapshot:
                async for message in made_on(self.reader, snapshot.messages(tables), sharer.name):
                    yield message
            return
        with self.watchers.following("StreamRouteSnapshot", context.peer(), sharer) as watcher:
            if request.HasField("resume_after"):
                watcher.reader.revision = resume_revision(self.state, "resume_after", request.resume_after)
            else:
                with self.streams.holding(sharer), self._snapshot(request) as snapshot:
                    watcher.reader.revision = snapshot.revision
                    self.state.change_log.check_reaches(snapshot.revision)
                    async for message in made_on(self.reader, snapshot.messages(tables), sharer.name):
                        yield message
                del snapshot  # it would be held as long as it is followed
            del request  # likewise
            async for message in self._following(watcher, tables):
                yield message

    async def StreamRouteChanges(self, request: pb.StreamRouteChangesRequest, context: Context) -> AsyncIterator[bytes]:
        """What changed after one revision up to another."""
        after = resume_revision(self.state, "after", request.after)
        log, identity = self.state.change_log, self.state.identity
        last = log.last.revision
        up_to = request.up_to_revision if request.HasField("up_to_revision") else last
        if not after <= up_to <= last:
            raise invalid_field("up_to_revision", f"is {up_to}, must be {after} to {last}")
        with self.streams.holding(sharer_of(context)):
            async for message in giving_way(change_messages(log.after(after), up_to, identity)):
                yield message

    async def _following(self, watcher: WatchStream, tables: Collection[RouteTable]) -> AsyncIterator[bytes]:
        """The changes after what a follower has been sent, with a bookmark whenever it has been sent everything."""
        log, identity, reader = self.state.change_log, self.state.identity, watcher.reader
        assert isinstance(reader, Follower), "the others watch topics"
        while True:
            watcher.woken.clear()
            async for message in giving_way(follow_messages(log, reader, identity, tables)):
                yield message
            self.watchers.sent(watcher)
            await watcher.woken.wait()

    @contextmanager
    def _snapshot(self, request: pb.StreamRouteSnapshotRequest) -> Iterator[RouteSnapshot]:
        """The tables as they were pinned, or as they are now."""
        if not request.HasField("pin_id"):
            yield replace(self.state.snapshot(), warm=self.warm_up.is_warm())
            return
        with self.pins.reading(request.pin_id) as snapshot:
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
