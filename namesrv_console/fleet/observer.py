"""The observer of one name server: it asks the name server again and again, for all viewers together.

It is polled, not watched: what changes without a revision (when a broker was heard of last, what the guard does,
whether it is warm) is part of what people look at, and an unanswered question shows that a name server is gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import structlog
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from tenacity import AsyncRetrying, retry_if_not_result

from groundwork.backoff import Backoff
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import Calls, pages
from namesrv_console.fleet.observation import BrokerKey, Observation, Reported, Tables

POLL_SECONDS = 1.0
"""Pause between two questions how a name server is: people see a change within about a second."""

READ_SECONDS = 2.0
"""Least pause between two readings of the tables, however often they change: a name server copies them for each."""

RENEW_SECONDS = 5.0
"""Longest pause between two readings: heartbeats change no revision."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 5.0
RETRY_JITTER = (0.75, 1.25)
"""First and longest pause after a failure; doubled in between, with jitter."""

LATEST = 20
"""Entries of the journal that are read with the tables."""

MAX_INTENTS = 5_000
"""Most intents that are shown: the most that a name server takes."""

ValueT = TypeVar("ValueT")


def now_millis() -> int:
    """The time, milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, pauses and chance, so that tests can have their own."""

    now_millis: Callable[[], int] = now_millis
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)


class Observer:
    """One name server, asked by one loop."""

    def __init__(self, server: Calls, tell: Callable[[], None], timing: Timing) -> None:
        """Knows nothing yet.

        Args:
            server: The name server.
            tell: Called after every observation that differs from the one before.
            timing: Clock, pauses and chance.
        """
        self.server = server
        self.seen = Observation(server.endpoint)
        self._tell = tell
        self._timing = timing
        self._read_at = float("-inf")
        self._read_of: tuple[object, ...] = ()
        self._digests_of: tuple[str, int] | None = None
        self._refusal: str | None = None
        self._log = structlog.get_logger("namesrv_console").bind(namesrv=str(server.endpoint))

    async def run(self) -> None:
        """Asks until it is cancelled."""
        until_it_answers = AsyncRetrying(
            retry=retry_if_not_result(bool),
            wait=Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, RETRY_JITTER, rng=self._timing.rng),
            sleep=self._timing.sleep,
        )
        while True:
            await until_it_answers(self.observe)
            await self._timing.sleep(POLL_SECONDS)

    async def observe(self) -> bool:
        """Asks once; says whether the name server answered."""
        before = self.seen
        try:
            self.seen = await self._asked()
        except CallError as error:
            self.seen = replace(before, problem=_in_short(error))
            if before.problem is None:
                self._log.warning("name_server_unreachable", problem=str(error))
        if before.problem is not None and self.seen.reachable:
            self._log.info("name_server_answers", name=self.seen.name)
        if _news_of(self.seen) != _news_of(before):
            self._tell()
        return self.seen.reachable

    async def _asked(self) -> Observation:
        status = cast(
            "pb.GetNamesrvStatusResponse", await self.server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
        )
        seen = replace(self.seen, status=status, answered_at_millis=self._timing.now_millis(), problem=None)
        if not self._must_read(status):
            return seen
        self._refusal = None
        tables = await self._unless_refused(self._read_tables(status), seen.tables)
        latest = await self._unless_refused(self._latest(), ())
        self._read_at, self._read_of = self._timing.monotonic(), _state_of(status)
        return replace(seen, tables=tables, latest=latest, refusal=self._refusal)

    async def _unless_refused(self, answer: Awaitable[ValueT], otherwise: ValueT) -> ValueT:
        """What a name server refuses to this console is told, and does not hide the rest."""
        try:
            return await answer
        except CallError as error:
            if error.unreachable:
                raise
            self._refusal = _in_short(error)
            return otherwise

    def _must_read(self, status: pb.GetNamesrvStatusResponse) -> bool:
        pause = self._timing.monotonic() - self._read_at
        return pause >= RENEW_SECONDS or (pause >= READ_SECONDS and _state_of(status) != self._read_of)

    async def _read_tables(self, status: pb.GetNamesrvStatusResponse) -> Tables:
        revision = taken_at = 0
        lives = {}
        request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_LIVE_BROKERS])
        async for message in self.server.stream("StreamRouteSnapshot", request):
            answer = cast("pb.StreamRouteSnapshotResponse", message)
            if answer.HasField("snapshot_header"):
                revision, taken_at = answer.header.revision, answer.snapshot_header.taken_at_millis
            for live in answer.chunk.live_brokers:
                lives[BrokerKey(live.cluster_name, live.broker_name, live.broker_id, live.broker_addr)] = live
        read_at = self._timing.now_millis()
        intents = await self._unless_refused(self._intents(), ())
        return Tables(revision, taken_at, read_at, lives, intents, await self._digests(status))

    async def _latest(self) -> tuple[admin_service_pb2.AuditEntry, ...]:
        request = admin_service_pb2.ListAuditEntriesRequest(page_size=LATEST)
        answer = await self.server.call("ListAuditEntries", request)
        return tuple(cast("admin_service_pb2.ListAuditEntriesResponse", answer).entries)

    async def _intents(self) -> tuple[admin_service_pb2.Intent, ...]:
        found: list[admin_service_pb2.Intent] = []
        async for page in pages(self.server, "ListIntents", admin_service_pb2.ListIntentsRequest(page_size=1_000)):
            found += cast("admin_service_pb2.ListIntentsResponse", page).intents
            if len(found) >= MAX_INTENTS:
                break
        return tuple(found)

    async def _digests(self, status: pb.GetNamesrvStatusResponse) -> dict[BrokerKey, Reported]:
        """Read again only after a change: a name server makes them anew for what changed."""
        point = (status.header.epoch, status.header.revision)
        if point == self._digests_of and self.seen.tables is not None:
            return dict(self.seen.tables.reported)
        found: dict[BrokerKey, Reported] = {}
        async for page in pages(self.server, "GetRouteDigest", pb.GetRouteDigestRequest(page_size=2_000)):
            for row in cast("pb.GetRouteDigestResponse", page).brokers:
                key = BrokerKey(row.cluster_name, row.broker_name, row.broker_id, row.broker_addr)
                found[key] = Reported(row.data_version.counter, row.digest)
        self._digests_of = point
        return found


def _state_of(status: pb.GetNamesrvStatusResponse) -> tuple[object, ...]:
    """All but what changes by itself."""
    header = status.header
    unconfirmed = status.unconfirmed_broker_count
    return (
        header.namesrv_name,
        header.epoch,
        header.revision,
        status.warm,
        status.guard_tripped,
        unconfirmed,
        status.replica.problem,
    )


def _in_short(error: CallError) -> str:
    """An error for people: gRPC's own texts begin with what it tried, and end with what is wrong."""
    message = error.error.message if error.error.reason else error.error.message.rpartition(": ")[2]
    return f"{error.reason}: {message}"


def _news_of(seen: Observation) -> tuple[object, ...]:
    """What viewers are told of."""
    return (seen.problem, seen.refusal, seen.tables, seen.status and _state_of(seen.status))
