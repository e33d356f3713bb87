"""Observers, one for each name server: they ask it again and again, so that no page waits for an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2 as diagnostics

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import MAX_BROKERS, Calls, check_count, pages
from nsctl.commands.doctor import check_silence, check_topics
from nsctl.commands.findings import Code, Finding
from nsctl.commands.history import Clock
from nsctl.compare import BrokerKey, Reported, reported
from nsctl.writable import lacks_writable_queue

POLL_SECONDS, CALL_SECONDS = 1.0, 3.0
"""Pause between two questions how a name server is, and time for an answer; then it is unreachable."""
READ_SECONDS, RENEW_SECONDS, READING_SHARE = 2.0, 5.0, 20
"""Pause between two readings of the tables after a change, and without one; and at least so many times a reading."""
LATEST, MAX_INTENTS, MAX_TOPICS = 100, 5_000, 1_000_000
"""The most that is read of one name server."""
LIVES, TOPICS = [pb.ROUTE_TABLE_LIVE_BROKERS], [pb.ROUTE_TABLE_BROKER_GROUPS, pb.ROUTE_TABLE_TOPIC_QUEUES]

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one name server, as of one reading. All times are by our clock."""

    point: tuple[str, int]
    clock: Clock
    lives: Mapping[BrokerKey, route_data_pb2.BrokerLiveInfo]
    intents: tuple[admin.Intent, ...] = ()
    reported: Mapping[BrokerKey, Reported] | None = None
    topics: frozenset[str] = frozenset()
    unwritable: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    """What the doctor says of unwritable topics."""
    named: frozenset[str] = frozenset()
    """Names of clusters and groups, which have topics of their own name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One name server as it was when it was asked last. What it said before it became unreachable is kept."""

    endpoint: Endpoint
    status: pb.GetNamesrvStatusResponse | None = None
    diagnostics: diagnostics.GetDiagnosticsResponse | None = None
    tables: Tables | None = None
    latest: tuple[admin.AuditEntry, ...] = ()
    answered_at_millis: int | None = None
    silence: Finding | None = None
    """Why it does not answer; None while it does."""
    refusal: str = ""
    """What it refuses to tell, if anything; the rest is shown."""

    @property
    def reachable(self) -> bool:
        return self.silence is None and self.status is not None

    @property
    def name(self) -> str:
        return self.status.header.namesrv_name if self.status else str(self.endpoint)


class Observer:
    """One name server, polled by one task: heartbeats and the guard change no revision that could be watched."""

    def __init__(self, server: Calls, files: ClientFiles | None = None) -> None:
        self.server, self.seen = server, Observation(server.endpoint)
        self._files, self._refusal = files, ""
        self._next_read = self._next_change = 0.0

    async def run(self) -> None:
        while True:
            await self.observe()
            await asyncio.sleep(POLL_SECONDS)

    async def observe(self) -> None:
        try:
            self.seen = await self._asked()
        except CallError as error:
            if self.seen.silence is None:
                why = await asyncio.to_thread(check_silence, self.seen.endpoint, error, self._files, CALL_SECONDS)
                self.seen = replace(self.seen, silence=why)
        except (ValueError, OverflowError) as error:  # it may say any number, and that of another one stays shown
            where, what = str(self.seen.endpoint), f"its answer makes no sense: {error}"
            why = Finding(Code.UNREACHABLE, where, what, "see which program listens there")
            self.seen = replace(self.seen, silence=why)

    async def _asked(self) -> Observation:
        status: Any = await self.server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
        seen = replace(self.seen, status=status, answered_at_millis=time.time_ns() // 1_000_000, silence=None)
        point, began = (status.header.epoch, status.header.revision), time.monotonic()
        known = seen.tables if seen.tables and seen.tables.point == point else None
        if began < (self._next_read if known else self._next_change):
            return seen
        self._refusal = ""
        tables = await self._renewed(known) if known else await self._read(point)
        call = self.server.call("GetDiagnostics", diagnostics.GetDiagnosticsRequest())
        told: Any = await self._unless_refused(call, None)
        call = self.server.call("ListAuditEntries", admin.ListAuditEntriesRequest(page_size=LATEST))
        journal: Any = await self._unless_refused(call, admin.ListAuditEntriesResponse())
        self._next_change = began + max(READ_SECONDS, READING_SHARE * (time.monotonic() - began))
        self._next_read = max(began + RENEW_SECONDS, self._next_change)
        latest = tuple(journal.entries)
        return replace(seen, tables=tables, diagnostics=told, latest=latest, refusal=self._refusal)

    async def _unless_refused(self, answer: Awaitable[AnswerT], otherwise: AnswerT) -> AnswerT:
        """What a name server refuses to this console is told, and does not hide the rest."""
        try:
            return await answer
        except CallError as error:
            if error.unreachable and not error.error.reason:
                raise
            self._refusal = f"{error.reason}: {error.error.message}"
            return otherwise

    async def _renewed(self, known: Tables) -> Tables:
        clock, chunks = await self._snapshot(LIVES)
        return replace(known, clock=clock, lives=_lives(chunks, clock))

    async def _read(self, point: tuple[str, int]) -> Tables:
        clock, chunks = await self._snapshot(LIVES + TOPICS)
        intents = self._all("ListIntents", admin.ListIntentsRequest(page_size=1_000), "intents", MAX_INTENTS)
        digests = self._all("GetRouteDigest", pb.GetRouteDigestRequest(page_size=2_000), "brokers", MAX_BROKERS)
        in_force = tuple(await self._unless_refused(intents, []))
        held = reported(await self._unless_refused(digests, []))
        return await asyncio.to_thread(
            _with_topics, Tables(point, clock, _lives(chunks, clock), in_force, held), chunks
        )

    async def _snapshot(self, wanted: list[Any]) -> tuple[Clock, list[pb.SnapshotChunk]]:
        began, theirs, ended, chunks, topics = time.time(), 0.0, 0.0, list[pb.SnapshotChunk](), 0
        part: Any
        async for part in self.server.stream("StreamRouteSnapshot", pb.StreamRouteSnapshotRequest(tables=wanted)):
            if part.HasField("snapshot_header"):
                theirs, ended = part.snapshot_header.taken_at_millis / 1000, time.time()
            chunks.append(part.chunk)
            topics += len(part.chunk.topics)
            check_count(self.server.endpoint, "topics", topics, MAX_TOPICS)
        check_count(self.server.endpoint, "live brokers", sum(len(one.live_brokers) for one in chunks), MAX_BROKERS)
        return Clock(began, theirs, ended), chunks

    async def _all(self, call: str, request: Any, field: str, most: int) -> list[Any]:
        found: list[Any] = []
        async for page in pages(self.server, call, request):
            found += getattr(page, field)
            check_count(self.server.endpoint, field, len(found), most)
        return found


def _lives(chunks: list[pb.SnapshotChunk], clock: Clock) -> dict[BrokerKey, route_data_pb2.BrokerLiveInfo]:
    """Brokers by key, with the name server's times turned into ours: two clocks that differ cancel out."""
    ahead_millis = int((clock.theirs - clock.ended) * 1000)
    lives = [live for chunk in chunks for live in chunk.live_brokers]
    for live in lives:
        live.last_update_timestamp_millis -= ahead_millis
        if live.HasField("doubt_ends_at_millis"):
            live.doubt_ends_at_millis -= ahead_millis
    return {BrokerKey(one.cluster_name, one.broker_name, one.broker_id, one.broker_addr): one for one in lives}


def _with_topics(tables: Tables, chunks: list[pb.SnapshotChunk]) -> Tables:
    groups = {(one.cluster_name, one.broker_name): one for chunk in chunks for one in chunk.broker_datas}
    named, topics, unwritable = (
        frozenset(name for key in groups for name in key),
        set[str](),
        list[pb.NamedTopicRoute](),
    )
    for one in (topic for chunk in chunks for topic in chunk.topics):
        keys = [(queues.cluster_name, queues.broker_name) for queues in one.queue_datas]
        of_topic = [groups[key] for key in keys if key in groups]
        route = route_data_pb2.TopicRouteData(queue_datas=one.queue_datas, broker_datas=of_topic)
        topics.add(one.topic)
        if lacks_writable_queue(route):
            unwritable.append(pb.NamedTopicRoute(topic=one.topic, route=route))
    found, names = tuple(check_topics("", unwritable, named, tables.intents)), {one.topic for one in unwritable}
    return replace(tables, topics=frozenset(topics), unwritable=frozenset(names), findings=found, named=named)
