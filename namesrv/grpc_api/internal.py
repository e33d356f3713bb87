"""The services of namesrv_internal: the stream of read-only copies, and diagnostics."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

import structlog
from namesrv_internal.v1 import diagnostics_service_pb2 as diagnostics_pb
from namesrv_internal.v1 import replica_service_pb2 as replica_pb

from groundwork.shares import Sharer, Shares
from namesrv import limits
from namesrv.app.access import caller_of, sharer_of
from namesrv.app.lookup_clients import LookupClients
from namesrv.app.stall_detector import StallDetector
from namesrv.app.watches import WatchDispatcher, WatchStream
from namesrv.app.worker import Worker
from namesrv.app.writer import settled
from namesrv.core.errors import invalid_field
from namesrv.core.replica_feed import ReplicaFeed, tables_message
from namesrv.core.route_view import RouteView
from namesrv.core.watch import Follower
from namesrv.engines.chosen_engine import ChosenEngine
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.streams import giving_way, made_on, resume_revision

_log = structlog.get_logger(__name__)

# The call of ReplicaService.

BOOKMARK_SECONDS = 1.0
"""Longest time between two bookmarks: a copy computes its age from them."""


class ReplicaCalls:
    """Sends copies a snapshot and all later changes. Shares limits with ``SnapshotCalls``."""

    def __init__(self, state: RouteView, watchers: WatchDispatcher, reader: Worker, streams: Shares) -> None:
        self._state = state
        self._watch_streams = watchers
        self._reader = reader
        self._streams = streams

    async def FollowTables(  # noqa: N802 - calls have the names of the wire contract
        self, request: replica_pb.FollowTablesRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Everything that a copy keeps, then its changes."""
        sharer = sharer_of(context)
        feed = self._watch_streams.replica_feed()
        with self._watch_streams.following("FollowTables", context.peer(), sharer) as watcher:
            if request.HasField("resume_after"):
                watcher.reader.revision = resume_revision(self._state, "resume_after", request.resume_after)
            else:
                async for message in self._snapshot(watcher, feed, sharer):
                    yield message
            async for message in self._changes(watcher, feed):
                yield message

    async def _snapshot(self, watcher: WatchStream, feed: ReplicaFeed, sharer: Sharer) -> AsyncIterator[bytes]:
        """The tables as they are now. Later changes are for the watcher's reader."""
        await settled(self._state)
        with self._streams.holding(sharer):
            snapshot = self._state.snapshot()
            watcher.reader.revision = snapshot.revision
            self._state.change_log.check_reaches(snapshot.revision)
            opening = feed.opening()
            messages = made_on(self._reader, snapshot.messages())
            yield tables_message(await anext(messages))
            async for message in giving_way(opening):
                yield message
            async for message in messages:
                yield tables_message(message)

    async def _changes(self, watcher: WatchStream, feed: ReplicaFeed) -> AsyncIterator[bytes]:
        log, identity, reader = self._state.change_log, self._state.identity, watcher.reader
        assert isinstance(reader, Follower), "the others watch topics"
        while True:
            watcher.woken.clear()
            async for message in giving_way(feed.messages(log, reader, identity)):
                yield message
            self._watch_streams.sent(watcher)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BOOKMARK_SECONDS):
                    await watcher.woken.wait()


# The calls of DiagnosticsService.

COUNT_SECONDS = 1.0
"""Shortest time between two counts of tasks: one takes 3 ms with 10,000 tasks."""


class DiagnosticsCalls:
    """Tells about this process."""

    def __init__(self, stall_detector: StallDetector, engine: ChosenEngine, clients: LookupClients) -> None:
        self._stall_detector = stall_detector
        self._engine = engine
        self._clients = clients
        self._counted_at = -math.inf
        self._task_count = 0

    async def GetDiagnostics(  # noqa: N802 - calls have the names of the wire contract
        self, _request: diagnostics_pb.GetDiagnosticsRequest, _context: Context
    ) -> diagnostics_pb.GetDiagnosticsResponse:
        """Figures about the implementation."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._task_count = now, len(asyncio.all_tasks())
        return diagnostics_pb.GetDiagnosticsResponse(
            engine=self._engine.name,
            engine_because=self._engine.why,
            task_count=self._task_count,
            loop_lag_millis=self._stall_detector.longest_delay() * 1000,
        )

    async def ListClients(  # noqa: N802
        self, request: diagnostics_pb.ListClientsRequest, context: Context
    ) -> diagnostics_pb.ListClientsResponse:
        """The clients that look topics up, and whether they are recorded."""
        clients = self._clients
        if request.HasField("record_millis"):
            millis = request.record_millis
            if not 0 <= millis <= limits.MAX_RECORD_MILLIS:
                raise invalid_field("record_millis", f"is {millis}, must be 0 to {limits.MAX_RECORD_MILLIS}")
            clients.record(millis / 1000)
            _log.info("client_recording_changed", seconds=millis / 1000, caller=caller_of(context))
        found = diagnostics_pb.ListClientsResponse(recording=clients.is_recording)
        if clients.since_millis is not None:
            found.began_at_millis, found.ends_at_millis = clients.since_millis, clients.ends_at_millis
            found.left_out_count = clients.left_out_count
        for key, client in reversed(clients.clients.items()):
            found.clients.add(
                **key._asdict(),
                lookup_count=client.lookup_count,
                first_at_millis=client.first_at_millis,
                last_at_millis=client.last_at_millis,
                last_topic=client.last_topic,
            )
        return found
