"""Open streams of changes: who may open one, who is woken when, what a shutdown tells them, and the list of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from random import Random
from typing import Any, cast

import pytest
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.behaviour import Behaviour
from namesrv.core.errors import (
    CallRefused,
    InvalidField,
    LimitExceeded,
    Overloaded,
    RegistryWarming,
    RevisionCompacted,
    ShuttingDown,
)
from namesrv.core.records.rows import DataVersion
from namesrv.core.routes.warm_up import WarmUp
from namesrv.core.slices import run_sync
from namesrv.core.watch.subscriptions import Subscription
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background import watch_streams
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.listener import ROUTE_SERVICE
from namesrv.server.rpc.handlers import Context, handlers_of_server
from namesrv.server.rpc.status import FAILURES
from namesrv.server.services.admin.watcher_list import WatcherListCalls
from namesrv.server.services.route.watches import WatchCalls
from support.core_fleet import B, Fleet
from support.partial_services import whole

Messages = AsyncIterator[bytes]


class _Caller:
    """All that these calls ask a context for."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"


CONTEXT = cast("Context", _Caller())


class Server:
    """What watches need of a name server, with its background work; for use inside a loop."""

    def __init__(self, fleet: Fleet, max_watchers: int = 100, **most: int) -> None:
        self.fleet = fleet
        self.warm_up = WarmUp(fleet.manager, fleet.clock, 0.0)
        self.shares = FairShares.of(None, watches=max_watchers, **most)
        self.watchers = WatchStreams(fleet.manager, self.warm_up, fleet.clock, Random(1), self.shares)
        self.calls = WatchCalls(fleet.manager, self.warm_up, self.watchers)
        self.lists = WatcherListCalls(fleet.manager, self.watchers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watchers.tell_changes())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def watch(self, *topics: str, **fields: Any) -> AsyncIterator[Messages]:
        request = pb.WatchTopicRoutesRequest(topics=topics, **fields)
        async with aclosing(self.calls.WatchTopicRoutes(request, CONTEXT)) as stream:  # type: ignore[type-var]
            yield stream

    async def listed(self, **fields: Any) -> admin_service_pb2.ListWatchersResponse:
        return await self.lists.ListWatchers(admin_service_pb2.ListWatchersRequest(**fields), CONTEXT)


async def next_of(stream: Messages) -> pb.WatchTopicRoutesResponse:
    async with asyncio.timeout(20):
        return pb.WatchTopicRoutesResponse.FromString(await anext(stream))


async def failure_of(stream: Messages) -> CallRefused:
    with pytest.raises(CallRefused) as caught:
        async with asyncio.timeout(20):
            await anext(stream)
    return caught.value


def run(
    work: Callable[[Server], Awaitable[None]], fleet: Fleet | None = None, max_watchers: int = 100, **most: int
) -> None:
    """Runs a test on a name server with one broker."""
    if fleet is None:
        fleet = Fleet()
        fleet.register(topics=["T1", "T2"])

    async def main() -> None:
        server = Server(fleet, max_watchers, **most)
        async with server.running():
            await work(server)
        assert len(server.watchers) == 0
        run_sync(server.fleet.manager.leftovers.clear_up())
        assert {kind: shares.used for kind, shares in server.shares.by_kind().items() if shares.used} == {}

    asyncio.run(main())


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
            streams = [
                await stack.enter_async_context(server.watch("T1")) for _ in range(watch_streams.WAKE_SLICE * 2 + 1)
            ]
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
            streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(watch_streams.WAKE_SLICE * 3)]

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
        server.fleet.manager.frozen = True
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
            assert min(seconds) >= watch_streams.FIRST_RETURN_SECONDS
            assert max(seconds) <= watch_streams.FIRST_RETURN_SECONDS + 1.0 + 50 / watch_streams.RETURNS_PER_SECOND

    run(work)


def test_watches_wait_where_lookups_do() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as stream:
            assert isinstance(await failure_of(stream), RegistryWarming)

    fleet = Fleet(Behaviour(need_wait_for_service=True))
    run(work, fleet)


def test_topics_that_are_not_there_are_told_when_the_name_server_is_warm() -> None:
    async def work(server: Server) -> None:
        server.warm_up = WarmUp(server.fleet.manager, server.fleet.clock, 30.0)
        server.watchers = WatchStreams(server.fleet.manager, server.warm_up, server.fleet.clock)
        server.calls = WatchCalls(server.fleet.manager, server.warm_up, server.watchers)
        async with server.running(), server.watch("T1", "T3") as stream:
            assert [change.topic for change in (await next_of(stream)).changes] == ["T1"]
            server.fleet.clock.advance(30.0)
            waiting = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            await server.watchers.say_what_is_absent()
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
        await run_cooperatively(server.fleet.manager.leftovers.clear_up())
        assert server.watchers.watches._index._by_topic == {}


def test_a_watch_that_finds_no_room_waits_for_what_others_have_left() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)
            async with server.watch("T1") as refused:
                assert isinstance(await failure_of(refused), LimitExceeded)
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)

    run(work, watched_names=2)


class _Reader(_Caller):
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


def test_watchers_are_listed_oldest_first_with_what_waits_for_them() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1", "T2", topic_prefixes=["T"]) as first, server.watch("T3") as second:
            await next_of(first)
            server.fleet.clock.advance(5)
            await next_of(second)
            server.fleet.register(B, 1, ())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            rows = (await server.listed()).watchers
            assert [(row.topic_count, list(row.topic_prefixes)) for row in rows] == [(2, ["T"]), (1, [])]
            assert [(row.revision, row.events_behind) for row in rows] == [(1, 2), (1, 0)]
            assert rows[1].opened_at_millis - rows[0].opened_at_millis == 5_000
            assert {row.peer for row in rows} == {"ipv4:127.0.0.1:50000"}

    run(work)


def test_pages_of_watchers_go_on_where_the_last_one_ended_also_if_it_has_gone() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as first, server.watch("T1", "T2") as second:
            await next_of(first)
            await next_of(second)
            page = await server.listed(page_size=1)
            assert len(page.watchers) == 1
            await first.aclose()  # type: ignore[attr-defined]
            last = await server.listed(page_size=1, page_token=page.next_page_token)
            assert ([row.topic_count for row in last.watchers], last.next_page_token) == ([2], "")

    run(work)


def test_a_page_has_at_most_400_watchers() -> None:
    async def work(server: Server) -> None:
        with ExitStack() as stack:
            for _ in range(limits.MAX_WATCHER_PAGE_SIZE + 1):
                stack.enter_context(server.watchers.following("peer"))
            page = await server.listed(page_size=limits.MAX_WATCHER_PAGE_SIZE + 1)
            assert len(page.watchers) == limits.MAX_WATCHER_PAGE_SIZE
            rest = await server.listed(page_token=page.next_page_token)
            assert [(row.call, row.topic_count) for row in rest.watchers] == [("StreamRouteSnapshot", 0)]

    run(work, max_watchers=1_000)


@pytest.mark.parametrize(("field", "value"), [("page_size", -1), ("page_token", "eA==")])
def test_a_bad_page_of_watchers_is_refused(field: str, value: object) -> None:
    async def work(server: Server) -> None:
        with pytest.raises(InvalidField) as caught:
            await server.listed(**{field: value})
        assert caught.value.field == field

    run(work)


def test_the_lag_of_a_watch_is_from_the_first_change_that_waited_until_its_message_has_left() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as stream:
            await next_of(stream)
            waiting = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            server.fleet.unregister()
            await waiting
            server.fleet.clock.advance(1.5)  # the transport takes so long
            assert server.watchers.lag.total == 0.0
            asking = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            assert server.watchers.lag.total == 1.5
            assert server.watchers.lag.buckets()[-1] == ("+Inf", 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    run(work)


def test_a_bookmark_is_not_a_lag() -> None:
    async def work(server: Server) -> None:
        async with server.watch("T1") as stream:
            await next_of(stream)
            for part in range(watch_streams.BOOKMARK_SECONDS):
                await run_cooperatively(
                    server.watchers.watches.make_bookmarks_due(part, watch_streams.BOOKMARK_SECONDS)
                )
            asking = asyncio.ensure_future(next_of(stream))
            for _ in range(5):
                await asyncio.sleep(0)
            assert server.watchers.lag.buckets()[-1] == ("+Inf", 0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    run(work)


class _SharedCaller(_Caller):
    """A context that can be sent what others are sent, too."""

    def __init__(self, sent: list[tuple[int, bytes]]) -> None:
        self.is_free = True
        self.sent = sent
        """By all of them: to how many a message was sent at once, and the message."""

    def write_to_all(self, streams: list[_SharedCaller], message: bytes) -> None:
        assert all(stream.is_free for stream in streams)
        self.sent.append((len(streams), message))


async def _shared_watches(
    stack: AsyncExitStack, server: Server, count: int, *topics: str
) -> tuple[list[_SharedCaller], list[asyncio.Future[pb.WatchTopicRoutesResponse]]]:
    """Watches that have their first message, with what their own tasks have next."""
    sent: list[tuple[int, bytes]] = []
    callers = [_SharedCaller(sent) for _ in range(count)]
    waiting: list[asyncio.Future[pb.WatchTopicRoutesResponse]] = []
    for caller in callers:
        request = pb.WatchTopicRoutesRequest(topics=topics)
        opened = server.calls.WatchTopicRoutes(request, cast("Context", caller))
        stream = await stack.enter_async_context(aclosing(opened))  # type: ignore[type-var]
        await next_of(stream)
        waiting.append(asyncio.ensure_future(next_of(stream)))
    await _until_idle(server)
    return callers, waiting


async def _until_idle(server: Server) -> None:
    async with asyncio.timeout(20):
        while not all(watcher.is_idle for watcher in server.watchers.after(0, 1_000)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def _stop(waiting: list[asyncio.Future[pb.WatchTopicRoutesResponse]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_a_change_is_sent_once_to_all_watches_that_are_told_the_same_without_their_tasks() -> None:
    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            callers, waiting = await _shared_watches(stack, server, 30, "T1")
            _, of_both = await _shared_watches(stack, server, 5, "T1", "T2")
            server.fleet.register(topics=[("T1", (7, 1, 6, 0)), "T2"], version=DataVersion(2, 1))
            async with asyncio.timeout(20):
                while not callers[0].sent:  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0)
            ((streams, message),) = callers[0].sent
            assert streams == 35
            told = pb.WatchTopicRoutesResponse.FromString(message)
            assert [change.topic for change in told.changes] == ["T1"]
            assert told.changes[0].route.queue_datas[0].read_queue_nums == 7
            assert told.bookmark
            assert told.header.revision == server.fleet.manager.revision
            assert server.watchers.lag.buckets()[-1][1] == 35
            assert not any(task.done() for task in waiting + of_both)
            await _stop(waiting + of_both)

    run(work)


def test_a_watch_whose_client_has_not_taken_the_last_message_is_told_by_its_own_task() -> None:
    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            callers, waiting = await _shared_watches(stack, server, 3, "T1")
            callers[1].is_free = False
            server.fleet.register(topics=[("T1", (7, 1, 6, 0))], version=DataVersion(2, 1))
            told = await waiting[1]
            assert told.changes[0].route.queue_datas[0].read_queue_nums == 7
            assert [count for count, _ in callers[0].sent] == [2]
            await _stop(waiting)

    run(work)


def test_a_watch_with_many_changed_topics_is_told_by_its_own_task() -> None:
    topics = [f"T{number}" for number in range(watch_streams.TOLD_TOPICS + 1)]
    fleet = Fleet()
    fleet.register(topics=topics)

    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            callers, waiting = await _shared_watches(stack, server, 1, *topics)
            fleet.register(topics=[(topic, (7, 1, 6, 0)) for topic in topics], version=DataVersion(2, 1))
            assert len((await waiting[0]).changes) == len(topics)
            assert not callers[0].sent
            await _stop(waiting)

    run(work, fleet)


def test_an_idle_watch_that_must_end_ends_by_its_own_task() -> None:
    async def work(server: Server) -> None:
        async with AsyncExitStack() as stack:
            callers, waiting = await _shared_watches(stack, server, 2, "T1")
            await server.watchers.close()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in ended] == [ShuttingDown, ShuttingDown]
            assert not callers[0].sent

    run(work)
