"""The calls of RouteService that stream whole tables: as they are, as they were pinned, and what changed since."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.auth.permits import Permission
from groundwork.shares import Shares
from namesrv.core.change_stream import change_messages, follow_messages, replica_message
from namesrv.core.errors import InvalidField, ShuttingDown
from namesrv.core.pins import Pins
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.replica_feed import ReplicaFeed
from namesrv.core.snapshot import RouteSnapshot, SnapshotPart
from namesrv.server.auth.callers import check_permission, sharer_of
from namesrv.server.background.watch_streams import WatchStream, WatchStreams
from namesrv.server.rpc.handlers import Context
from namesrv.server.services.route import requests
from namesrv.server.services.route.resuming import resume_revision

REPLICA_BOOKMARK_SECONDS = 1.0
"""A read-only copy is told so often that nothing has changed: it knows from that how old it is."""


class SnapshotCalls:
    """Streams are joined from fragments in the core; every stream gives the event loop back between messages."""

    def __init__(self, manager: RouteInfoManager, pins: Pins, watchers: WatchStreams, streams: Shares) -> None:
        self._manager = manager
        self._pins = pins
        self._watch_streams = watchers
        self._streams = streams
        """Streams that are open: whatever they have yet to send stays in memory."""

    async def PinRouteSnapshot(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.PinRouteSnapshotRequest, context: Context
    ) -> pb.PinRouteSnapshotResponse:
        """Holds the tables as they are now."""
        lease_seconds = requests.pin_lease_seconds(request)
        if self._manager.frozen:
            raise ShuttingDown
        manager = self._manager
        pin_id = self._pins.pin(manager.revision, manager.snapshot, lease_seconds, sharer_of(context))
        return pb.PinRouteSnapshotResponse(header=self._manager.header(), pin_id=pin_id, lease_seconds=lease_seconds)

    async def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """All tables at one revision, or a part of them, and the changes after it if they are asked for."""
        part = requests.snapshot_part(request)
        _check_resuming(request)
        _check_for_replica(request)
        sharer = sharer_of(context)
        if not request.follow:
            with self._streams.holding(sharer), self._snapshot(request, part) as snapshot:
                async for message in _giving_way(snapshot.messages(part)):
                    yield message
            return
        feed = self._watch_streams.replica_feed() if request.for_replica else None
        with self._watch_streams.following(context.peer(), sharer) as watcher:
            if request.HasField("resume_after"):
                watcher.reader.revision = resume_revision(self._manager, "resume_after", request.resume_after)
            else:
                with self._streams.holding(sharer), self._snapshot(request, part) as snapshot:
                    watcher.reader.revision = snapshot.revision
                    self._manager.change_log.check_reaches(snapshot.revision)
                    async for message in _giving_way(self._opening(snapshot, part, feed)):
                        yield message
                del snapshot  # it would be held as long as it is followed
            async for message in self._following(watcher, part, feed):
                yield message

    async def StreamRouteChanges(  # noqa: N802
        self, request: pb.StreamRouteChangesRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """What changed after one revision up to another, or a shard of it."""
        shard = requests.snapshot_shard(request)
        after = resume_revision(self._manager, "after", request.after)
        log, identity = self._manager.change_log, self._manager.identity
        last = log.last.revision
        up_to = request.up_to_revision if request.HasField("up_to_revision") else last
        if not after <= up_to <= last:
            raise InvalidField("up_to_revision", f"is {up_to}, must be {after} to {last}")
        with self._streams.holding(sharer_of(context)):
            async for message in _giving_way(change_messages(log.after(after), up_to, identity, shard)):
                yield message

    def _opening(self, snapshot: RouteSnapshot, part: SnapshotPart, feed: ReplicaFeed | None) -> Iterator[bytes]:
        """A snapshot of this moment that is going to be followed; with a feed also what there is beyond the tables."""
        messages = snapshot.messages(part)
        beyond = feed.opening() if feed is not None else iter(())
        yield next(messages)
        for rows in beyond:
            yield replica_message(self._manager.identity, snapshot.revision, rows)
        yield from messages

    async def _following(
        self, watcher: WatchStream, part: SnapshotPart, feed: ReplicaFeed | None
    ) -> AsyncIterator[bytes]:
        """The changes after what a follower has been sent, with a bookmark whenever it has been sent everything."""
        log, identity = self._manager.change_log, self._manager.identity
        while True:
            watcher.woken.clear()
            async for message in _giving_way(follow_messages(log, watcher.reader, identity, part, feed)):
                yield message
            self._watch_streams.sent(watcher)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if feed is None else REPLICA_BOOKMARK_SECONDS):
                    await watcher.woken.wait()

    @contextmanager
    def _snapshot(self, request: pb.StreamRouteSnapshotRequest, part: SnapshotPart) -> Iterator[RouteSnapshot]:
        """The tables as they were pinned, or as they are now."""
        if not request.HasField("pin_id"):
            yield self._manager.snapshot(part.tables)
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
    check_permission(Permission.ADMINISTER)


async def _giving_way(messages: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Hands messages on and gives the event loop back after each; empty ones are pauses and are not handed on."""
    for message in messages:
        if message:
            yield message
        await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
