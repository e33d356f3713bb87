"""Open streams of changes: who may open one, who is woken when, and what a shutdown tells them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app import watches
from namesrv.app.quotas import FairShares
from namesrv.app.watches import WatchDispatcher
from namesrv.app.worker import Worker
from namesrv.app.writer import run_cooperatively
from namesrv.core.errors import (
    InvalidField,
    LimitExceeded,
    Overloaded,
    RevisionCompacted,
    ShuttingDown,
)
from namesrv.core.model import DataVersion
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch import Subscription
from namesrv.error_codes import FAILURES
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.grpc_api.streams import WatchCalls
from namesrv.server.listener import ROUTE_SERVICE
from tests.support.partial_services import whole
from tests.unit.namesrv.worlds.watching import Caller, Messages, Server, failure_of, next_of, run


def test_a_watch_is_told_of_a_change_while_it_waits() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as stream:
            await next_of(stream)
            waiting = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            server.fleet.unregister()
            assert not (await waiting).changes[0].HasField("route")

    run(work)


def test_more_watches_than_are_woken_at_once_are_all_told() -> None:
    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(watches.WAKE_SLICE * 2 + 1)]
            for stream in streams:
                await next_of(stream)
            waiting = [asyncio.ensure_future(next_of(stream)) for stream in streams]
            await asyncio.sleep(0)
            server.fleet.unregister()
            assert {message.header.revision for message in await asyncio.gather(*waiting)} == {2}

    run(work)


def test_changes_that_come_while_watches_are_woken_are_told_too() -> None:
    async def work(server: Server) -> None:
        fleet = server.fleet
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(watches.WAKE_SLICE * 3)]

            async def read_up_to(stream: Messages, revision: int) -> None:
                while (message := await next_of(stream)).header.revision < revision:
                    assert message.bookmark

            reading = [asyncio.ensure_future(read_up_to(stream, 31)) for stream in streams]
            for number in range(30):
                fleet.register(topics=[("T1", (number, 1, 6, 0))], version=DataVersion(2, number))
                await asyncio.sleep(0)
            await asyncio.gather(*reading)

    run(work)


def test_one_watcher_too_many_is_told_to_try_again_until_another_goes() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as first, server.watch("T1") as second, server.watch("T1") as third:
            await next_of(first)
            await next_of(second)
            assert isinstance(await failure_of(third), Overloaded)
        async with server.watch("T1") as again:
            await next_of(again)

    run(work, max_watchers=2)


def test_a_name_server_that_shuts_down_takes_no_watch() -> None:
    async def work(server: Server) -> None:
        server.fleet.state.frozen = True
        async with server.watch("T1") as stream:
            assert isinstance(await failure_of(stream), ShuttingDown)

    run(work)


def test_at_a_shutdown_each_watch_is_told_another_time_to_come_back_elsewhere() -> None:
    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(50)]
            for stream in streams:
                await next_of(stream)
            waiting = [asyncio.ensure_future(failure_of(stream)) for stream in streams]
            await server.watchers.close()
            errors = [FAILURES.table.rich(error) for error in await asyncio.gather(*waiting)]
            assert {error.reason for error in errors} == {"SHUTTING_DOWN"}
            seconds = [error.retry_after_seconds or 0.0 for error in errors]
            assert len(set(seconds)) > 40
            assert min(seconds) >= watches.FIRST_RETURN_SECONDS
            assert max(seconds) <= watches.FIRST_RETURN_SECONDS + 1.0 + 50 / watches.RETURNS_PER_SECOND

    run(work)


def test_topics_that_are_not_there_are_told_when_the_name_server_is_warm() -> None:
    async def work(server: Server) -> None:
        server.warm_up = WarmUp(server.fleet.state, server.fleet.clock, 30.0)
        server.watchers = WatchDispatcher(server.fleet.state, server.warm_up, server.fleet.clock)
        server.calls = WatchCalls(server.fleet.state, server.warm_up, server.watchers, Worker("reader"))
        async with server.running(), server.watch("T1", "T3") as stream:
            assert [change.topic for change in (await next_of(stream)).changes] == ["T1"]
            server.fleet.clock.advance(30.0)
            waiting = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            await server.watchers.announce_missing()
            (change,) = (await waiting).changes
            assert (change.topic, change.HasField("route")) == ("T3", False)

    run(work)


def test_what_a_watch_may_ask_for_is_bounded() -> None:
    async def work(server: Server) -> None:
        topics = [f"T{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        prefixes = [f"p{number}" for number in range(limits.MAX_WATCH_PREFIXES)]
        async with server.watch(*topics, topic_prefixes=prefixes) as stream:
            await next_of(stream)
        for names, beginnings in (([*topics, "T"], prefixes), (topics, [*prefixes, "p"])):
            async with server.watch(*names, topic_prefixes=beginnings) as stream:
                assert isinstance(await failure_of(stream), LimitExceeded)

    run(work)


def test_an_empty_prefix_is_of_all_topics_and_an_impossible_one_is_refused() -> None:
    async def work(server: Server) -> None:
        async with server.watch(topic_prefixes=[""]) as stream:
            assert len((await next_of(stream)).changes) == 2
        for prefix in ("a b", "x" * 256):
            async with server.watch(topic_prefixes=["T", prefix]) as stream:
                error = await failure_of(stream)
                assert isinstance(error, InvalidField)
                assert error.field == "topic_prefixes[1]"

    run(work)


def test_a_watch_that_fails_while_it_begins_leaves_nothing_behind() -> None:
    async def work(server: Server) -> None:
        with pytest.raises(RevisionCompacted):
            async with server.watchers.watching(Subscription(frozenset(["T1"])), 5, "peer"):
                raise AssertionError("that revision is still to come")
        assert len(server.watchers) == 0
        await run_cooperatively(server.fleet.state.leftovers.clear_up())
        assert len(server.watchers.watches._index._by_topic) == 0


def test_a_watch_that_finds_no_room_waits_for_what_others_have_left() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)
            async with server.watch("T1") as refused:
                assert isinstance(await failure_of(refused), LimitExceeded)
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)

    run(work, watched_names=2)


class _Reader(Caller):
    """A context whose reader takes every message."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, message: bytes) -> None:
        self.messages.put_nowait(message)


def test_a_watch_that_has_begun_does_not_count_as_a_request_under_way() -> None:
    async def work(server: Server) -> None:
        topics = [f"a-topic-{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        request = pb.WatchTopicRoutesRequest(topics=topics).SerializeToString()
        shares, reader = FairShares.of(request_bytes=len(request)), _Reader()
        handlers: Any = handlers_of_server(30.0, shares=shares).of(ROUTE_SERVICE, whole(ROUTE_SERVICE, server.calls))
        stream = asyncio.create_task(handlers["WatchTopicRoutes"].unary_stream(request, reader))
        async with asyncio.timeout(20):
            await reader.messages.get()
        assert (shares.streams.used, shares.request_bytes.used) == (1, 0)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert (shares.streams.used, shares.request_bytes.used) == (0, 0)

    run(work)
