"""Observers, which ask each name server again and again for all viewers, and the fleet of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import grpc
import structlog
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2
from tenacity import AsyncRetrying, retry_if_not_result

from groundwork.backoff import Backoff
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from groundwork.namesrv_client import MAX_BROKERS, Calls, check_count, pages
from nsctl.compare import BrokerKey, Reported, reported

# The console's observation of one name server.


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one name server but for its topics, as of one reading of them."""

    revision: int
    taken_at_millis: int
    """By the name server's clock."""
    read_at_millis: int
    """By ours."""
    lives: Mapping[BrokerKey, route_data_pb2.BrokerLiveInfo]
    intents: tuple[admin_service_pb2.Intent, ...]
    reported: Mapping[BrokerKey, Reported]
    """Of the revision, or of a later one: digests are read after the brokers."""

    def heard_at(self, key: BrokerKey) -> int:
        """When a broker was heard of last, by our clock, milliseconds since the Unix epoch.

        Two clocks that differ cancel out: the name server's says how long ago it was when the tables were taken.
        """
        return self.read_at_millis - (self.taken_at_millis - self.lives[key].last_update_timestamp_millis)


@dataclass(frozen=True, slots=True)
class Observation:
    """One name server as it was when it was asked last. What it said before it became unreachable is kept."""

    endpoint: Endpoint
    status: pb.GetNamesrvStatusResponse | None = None
    """None if it never answered."""
    tables: Tables | None = None
    latest: tuple[admin_service_pb2.AuditEntry, ...] = field(default=())
    """The newest entries of its journal, newest first."""
    answered_at_millis: int | None = None
    """When it answered last, by our clock."""
    problem: str | None = None
    """Why it cannot be asked; None while it answers."""
    refusal: str | None = None
    """What it refuses to tell, if anything; the rest is shown."""
    loop_lag_millis: float = 0.0
    """The longest delay of its event loop during the minute before it answered last."""

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was asked last."""
        return self.problem is None and self.status is not None

    @property
    def asked(self) -> bool:
        """Whether it has been asked at all: one that has not is neither reachable nor unreachable."""
        return self.problem is not None or self.status is not None

    @property
    def name(self) -> str:
        """Its own name for itself, or its address until it said one."""
        return self.status.header.namesrv_name if self.status else str(self.endpoint)


# The observer of one name server: it asks the name server again and again, for all viewers together.
#
# It is polled, not watched: what changes without a revision (when a broker was heard of last, what the guard does,
# whether it is warm) is part of what people look at, and an unanswered question shows that a name server is gone.

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
        self._log = structlog.get_logger("nsctl.console").bind(namesrv=str(server.endpoint))

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
        request = diagnostics_service_pb2.GetDiagnosticsRequest()
        told = cast("diagnostics_service_pb2.GetDiagnosticsResponse", await self.server.call("GetDiagnostics", request))
        seen = replace(
            self.seen,
            status=status,
            loop_lag_millis=told.loop_lag_millis,
            answered_at_millis=self._timing.now_millis(),
            problem=None,
        )
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
            if error.unreachable and error.reason != "NOT_DURABLE":  # it answers, but its disk cannot be read
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
            check_count(self.server.endpoint, "live brokers", len(lives), MAX_BROKERS)
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
            found |= reported(cast("pb.GetRouteDigestResponse", page).brokers)
            check_count(self.server.endpoint, "digests", len(found), MAX_BROKERS)
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
        status.doubted_broker_count,
    )


def _in_short(error: CallError) -> str:
    """An error for people: gRPC's own texts begin with what it tried, and end with what is wrong."""
    message = error.error.message if error.error.reason else error.error.message.rpartition(": ")[2]
    return f"{error.reason}: {message}"


def _news_of(seen: Observation) -> tuple[object, ...]:
    """What viewers are told of."""
    return (seen.problem, seen.refusal, seen.tables, seen.status and _state_of(seen.status))


# All name servers of a console, and who waits for news of them.


class Fleet:
    """The observers of all name servers, run together, and one version of all that they saw.

    Nobody queues anything here: whoever waits learns that there is a later version, however many there were.
    """

    def __init__(self, servers: Sequence[Calls], timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.servers = tuple(servers)
        self.version = 0
        """Raised by every observation that differs from the one before."""
        self._news = asyncio.Event()
        self.observers = tuple(Observer(server, self._tell, self.timing) for server in self.servers)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """What is known of each, in the order they were named."""
        return tuple(observer.seen for observer in self.observers)

    @property
    def group_names(self) -> frozenset[str]:
        """Names of all clusters and broker groups that were seen."""
        keys = {key[:2] for view in self.seen if view.tables for key in view.tables.lives}
        return frozenset(name for key in keys for name in key)

    async def each(self, ask: Callable[[Calls], Awaitable[ValueT]]) -> list[ValueT | CallError]:
        """Every name server's answer or failure, asked at the same time, in the order they were named.

        One that did not answer when it was asked last is not asked: nobody waits for it again.
        """

        async def answer(observer: Observer) -> ValueT | CallError:
            seen, server = observer.seen, observer.server
            if seen.asked and not seen.reachable:
                return CallError(server.endpoint, RichError(grpc.StatusCode.UNAVAILABLE, seen.problem or ""))
            try:
                return await ask(server)
            except CallError as error:
                return error

        return await asyncio.gather(*(answer(observer) for observer in self.observers))

    async def run(self) -> None:
        """Observes until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for observer in self.observers:
                tasks.create_task(observer.run())

    async def later_than(self, version: int) -> int:
        """Waits until there is a later version, and returns it."""
        while self.version <= version:
            await self._news.wait()
        return self.version

    def _tell(self) -> None:
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()
