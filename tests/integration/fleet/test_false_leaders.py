"""A read-only copy takes no more from a leader than its limits, and tries again: leaders here are false."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import grpc
import structlog
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1.replica_service_pb2 import ChangeStart, FollowTablesResponse, HeardBroker, News

from groundwork.intake import IntakeLimits
from namesrv.core import copy_size
from namesrv.core.replica import ReplicaIntake, ReplicaTables
from namesrv.replica import leader_stream
from namesrv.replica.leader_stream import LeaderStream
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock

TIMEOUT = 20.0
LIMITS = IntakeLimits(bytes=1 << 20, rows=10_000, seconds=600.0)
ON_THE_WAY = 32 << 20
"""More bytes than flow control lets a server send that nobody reads."""

Script = Callable[["FalseLeader"], AsyncIterator[FollowTablesResponse]]


@dataclass
class FalseLeader:
    """Answers each call for a snapshot as its script says, and counts what it could send."""

    script: Script
    calls: int = 0
    sent_bytes: int = 0
    clock: VirtualClock = field(default_factory=VirtualClock)
    """The clock of the copy."""
    bookmarks: int = 0
    """Bookmarks that the copy has come to."""

    async def stream(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        self.calls += 1
        async for message in self.script(self):
            encoded = message.SerializeToString()
            yield encoded
            self.sent_bytes += len(encoded)


@asynccontextmanager
async def served(leader: FalseLeader) -> AsyncIterator[str]:
    """The leader on loopback."""
    server = grpc.aio.server()
    call = grpc.unary_stream_rpc_method_handler(leader.stream)
    handler = grpc.method_handlers_generic_handler("namesrv_internal.v1.ReplicaService", {"FollowTables": call})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@dataclass
class Copy:
    """A copy that follows leaders until it has what a test waits for."""

    leader: FalseLeader
    tables: list[ReplicaTables] = field(default_factory=list)
    """The tables at each bookmark."""

    async def on_bookmark(self, tables: ReplicaTables) -> None:
        self.tables.append(tables)
        self.leader.bookmarks += 1


def follow(
    *leaders: FalseLeader, until: Callable[[LeaderStream, Copy], bool], limits: IntakeLimits = LIMITS
) -> tuple[LeaderStream, Copy, list[Any]]:
    """Follows the leaders until a condition holds; returns what the copy has then, and its log."""

    async def main() -> tuple[LeaderStream, Copy]:
        async with asyncio.timeout(TIMEOUT), served_all(leaders) as targets:
            copy, clock = Copy(leaders[0]), leaders[0].clock
            stream = LeaderStream(
                targets,
                lambda: ReplicaIntake(lambda identity: ReplicaTables(identity, clock), "copy"),
                copy.on_bookmark,
                monotonic=clock.monotonic,
            )
            following = asyncio.create_task(stream.run())
            try:
                await asyncio.to_thread(eventually, lambda: until(stream, copy), bool)
            finally:
                following.cancel()
            return stream, copy

    with (
        structlog.testing.capture_logs() as lines,
        mock.patch.object(leader_stream, "SNAPSHOT_LIMITS", limits),
        mock.patch.object(leader_stream, "CHANGE_LIMITS", limits),
    ):
        stream, copy = asyncio.run(main())
    return stream, copy, [line for line in lines if line["event"] == "leader_lost"]


@asynccontextmanager
async def served_all(leaders: tuple[FalseLeader, ...]) -> AsyncIterator[list[str]]:
    if not leaders:
        yield []
        return
    async with served(leaders[0]) as target, served_all(leaders[1:]) as others:
        yield [target, *others]


def message(revision: int = 1, **content: Any) -> FollowTablesResponse:
    header = route_data_pb2.NamesrvHeader(namesrv_name="false", epoch="1", revision=revision)
    return FollowTablesResponse(tables=pb.StreamRouteSnapshotResponse(header=header, **content))


def brokers(*names: str) -> FollowTablesResponse:
    """Broker groups; only the first one has a member that is live."""
    address = route_data_pb2.BrokerAddr(broker_id=0, broker_addr="127.0.0.1:10911")
    groups = [
        route_data_pb2.BrokerData(cluster_name="c", broker_name=name, broker_addrs=[address], zone_name="z" * 200)
        for name in names
    ]
    return message(chunk=pb.SnapshotChunk(broker_datas=groups))


async def without_end(_leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """A snapshot that never ends."""
    yield message(snapshot_header=pb.SnapshotHeader())
    number = 0
    while True:
        yield brokers(*(f"broker-{number + count}" for count in range(100)))
        number += 100


def refusal(*leaders: FalseLeader, limits: IntakeLimits = LIMITS) -> tuple[str, list[Any]]:
    """Why a copy gave its first leader up, once it has been called again; and the log."""
    stream, copy, log = follow(*leaders, until=lambda *_: leaders[0].calls >= 2, limits=limits)
    assert copy.tables == []
    return stream.problem, log


def test_a_snapshot_without_end_is_refused_at_its_limit_of_bytes() -> None:
    leader = FalseLeader(without_end)
    problem, log = refusal(leader)
    assert problem.startswith("sends what cannot be used: the snapshot has 1,0")
    assert problem.endswith(" bytes so far, over the limit of 1,048,576")
    assert leader.sent_bytes < leader.calls * (LIMITS.bytes + ON_THE_WAY)
    (line,) = log
    assert (line["log_level"], line["problem"]) == ("warning", problem)
    assert line["leader"].startswith("127.0.0.1:")


def test_a_snapshot_of_too_many_rows_is_refused() -> None:
    problem, _ = refusal(FalseLeader(without_end), limits=IntakeLimits(bytes=1 << 30, rows=1_000, seconds=600.0))
    assert problem == "sends what cannot be used: the snapshot has 1,100 rows so far, over the limit of 1,000"


def test_a_snapshot_of_more_than_a_copy_keeps_is_refused() -> None:
    with mock.patch.object(copy_size, "MAX_BROKER_ROWS", 1_000):
        problem, _ = refusal(FalseLeader(without_end))
    assert problem == "sends what cannot be used: 1,200 rows about brokers, over the limit of 1,000 of a copy"


async def slowly(leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """A snapshot that never ends, with nine seconds between two messages."""
    yield message(snapshot_header=pb.SnapshotHeader())
    while True:
        yield message(chunk=pb.SnapshotChunk())
        leader.clock.advance(9.0)


def test_a_snapshot_that_never_gets_whole_is_refused_after_ten_minutes() -> None:
    problem, _ = refusal(FalseLeader(slowly))
    assert problem.startswith("sends what cannot be used: the snapshot has ")
    assert problem.endswith(" seconds so far, over the limit of 600")


async def says_nothing(_leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """A snapshot that stops after its header."""
    yield message(snapshot_header=pb.SnapshotHeader())
    await asyncio.get_running_loop().create_future()


def test_a_leader_that_stops_within_its_snapshot_is_given_up() -> None:
    with mock.patch.object(leader_stream, "SILENCE_SECONDS", 0.1):
        problem, _ = refusal(FalseLeader(says_nothing))
    assert problem == "said nothing for 0.1 s"


async def nothing(_leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """The snapshot of a leader without brokers, and a bookmark every now and then."""
    yield message(snapshot_header=pb.SnapshotHeader())
    yield message(snapshot_end=pb.SnapshotEnd())
    while True:
        yield message(changes=pb.RouteChanges())
        await asyncio.sleep(0.01)


def test_the_next_leader_is_followed_after_one_that_sends_too_much() -> None:
    false = FalseLeader(without_end)
    stream, copy, _ = follow(false, FalseLeader(nothing), until=lambda _, copy: bool(copy.tables))
    assert (stream.problem, copy.tables[0].state.revision) == ("", 1)


def rows(count: int) -> pb.RouteChanges:
    """Parts of a change that say nothing new."""
    live = route_data_pb2.BrokerLiveInfo(cluster_name="c", broker_name="broker-a", broker_addr="127.0.0.1:10911")
    return pb.RouteChanges(changes=[pb.RouteChange(live_put=live)] * count)


async def changes_without_end(leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """A change that never ends."""
    if leader.calls == 1:
        yield message(snapshot_header=pb.SnapshotHeader())
        yield message(snapshot_end=pb.SnapshotEnd())
        yield message(changes=pb.RouteChanges())
    yield FollowTablesResponse(change_start=ChangeStart(revision=2))
    while True:
        yield message(revision=2, changes=rows(100))


def test_a_change_without_end_is_refused_and_the_copy_stays_as_it_was() -> None:
    leader = FalseLeader(changes_without_end)
    stream, copy, _ = follow(leader, until=lambda stream, copy: bool(copy.tables and stream.problem))
    assert stream.problem == (
        "sends what cannot be used: the change after revision 1 has 10,100 rows so far, over the limit of 10,000"
    )
    assert [tables.state.revision for tables in copy.tables] == [1]


async def news(leader: FalseLeader) -> AsyncIterator[FollowTablesResponse]:
    """An honest leader with more news in a day than may come at once: a bookmark follows each of them."""
    yield message(snapshot_header=pb.SnapshotHeader())
    yield message(snapshot_end=pb.SnapshotEnd())
    for count in range(1, 11):
        heard = [HeardBroker(cluster_name="c", broker_addr="a", last_update_timestamp_millis=1)] * 2_000
        yield FollowTablesResponse(news=News(heard_brokers=heard))
        yield message(changes=pb.RouteChanges())
        while leader.bookmarks < count:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        leader.clock.advance(300.0)
    await asyncio.get_running_loop().create_future()


def test_limits_count_from_one_bookmark_to_the_next() -> None:
    stream, _, log = follow(FalseLeader(news), until=lambda _, copy: len(copy.tables) == 10)
    assert (stream.problem, log) == ("", [])
