"""Open streams of changes: their limits and order, what several are sent at once, their end, and their list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from random import Random
from typing import Any, Self, cast

import pytest
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app import watches
from namesrv.app.access import FairShares
from namesrv.app.watches import WatchStreams
from namesrv.app.writer import run_cooperatively
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import DataVersion
from namesrv.core.pace import SLICE
from namesrv.core.state import WarmUp
from namesrv.core.watch.hub import RouteWatch, Subscription
from namesrv.error_codes import FAILURES
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.server.server import ROUTE_SERVICE
from namesrv_common.server.rpc_handlers import Context
from namesrv_common.server.shares import Sharer
from tests.support.calls_from_nowhere import CONTEXT, Caller, FakeEngineCall
from tests.support.core_fleet import B, Fleet
from tests.support.patience import TIMEOUT
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import admin_servicer, route_servicer, until

Messages = AsyncIterator[bytes]


class Requests:
    """The requests of a watch that stays open."""

    def __init__(self, *requests: pb.WatchTopicRoutesRequest) -> None:
        self._queue: asyncio.Queue[pb.WatchTopicRoutesRequest] = asyncio.Queue()
        for request in requests:
            self._queue.put_nowait(request)

    def send(self, *topics: str, **fields: Any) -> None:
        self._queue.put_nowait(pb.WatchTopicRoutesRequest(topics=topics, **fields))

    @property
    def not_read(self) -> int:
        return self._queue.qsize()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.WatchTopicRoutesRequest:
        return await self._queue.get()


class Server:
    """What watches need of a name server, with its background work; for use inside a loop."""

    def __init__(self, fleet: Fleet, warm_up_seconds: float = 0.0, **most: int) -> None:
        self.fleet = fleet
        self.warm_up = WarmUp(fleet.state, warm_up_seconds)
        self.shares = FairShares(None, **most)
        self.watchers = WatchStreams(fleet.state, self.warm_up, Random(1), self.shares)
        self.lags: list[float] = []
        self.watchers.on_lag = self.lags.append
        self.calls = route_servicer(fleet, watchers=self.watchers).streams
        self.lists = admin_servicer(fleet, watchers=self.watchers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watchers.notify_readers())
        try:
            yield
        finally:
            await stop(task)

    @asynccontextmanager
    async def watch(self, *topics: str, **fields: Any) -> AsyncIterator[Messages]:
        async with self.watch_of(Requests(pb.WatchTopicRoutesRequest(topics=topics, **fields))) as stream:
            yield stream

    @asynccontextmanager
    async def watch_of(self, requests: Requests) -> AsyncIterator[Messages]:
        async with aclosing(self.calls.WatchTopicRoutes(requests, CONTEXT)) as stream:  # type: ignore[type-var]
            yield stream

    async def names_have_left(self) -> None:
        """Waits until the names of all watches that have ended have left the index."""
        await until(lambda: not self.shares.watched_names.used)

    async def listed(self, **fields: Any) -> admin_service_pb2.ListWatchersResponse:
        return await self.lists.ListWatchers(admin_service_pb2.ListWatchersRequest(**fields), CONTEXT)


async def stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def next_of(stream: Messages) -> pb.WatchTopicRoutesResponse:
    async with asyncio.timeout(TIMEOUT):
        return pb.WatchTopicRoutesResponse.FromString(await anext(stream))


async def failure_of(stream: Messages) -> Refused:
    with pytest.raises(Refused) as caught:
        async with asyncio.timeout(TIMEOUT):
            await anext(stream)
    return caught.value


@asynccontextmanager
async def serving(fleet: Fleet | None = None, **options: Any) -> AsyncIterator[Server]:
    """A name server with one broker. Its test must leave nothing in it."""
    if fleet is None:
        fleet = Fleet()
        fleet.register(topics=["T1", "T2"])
    server = Server(fleet, **options)
    async with server.running():
        yield server
    assert len(server.watchers) == 0
    await server.names_have_left()
    assert {kind: shares.used for kind, shares in server.shares.by_kind().items() if shares.used} == {}


WAKES_OF_A_SLICE = SLICE // watches.ITEMS_OF_A_WAKE


async def test_more_watches_than_are_woken_at_once_are_all_told() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(WAKES_OF_A_SLICE * 2 + 1)]
        for stream in streams:
            await next_of(stream)
        waiting = [asyncio.ensure_future(next_of(stream)) for stream in streams]
        await asyncio.sleep(0)
        server.fleet.unregister()
        assert {message.header.revision for message in await asyncio.gather(*waiting)} == {2}


async def test_changes_that_come_while_watches_are_woken_are_told_too() -> None:
    async with serving() as server:
        fleet = server.fleet
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(WAKES_OF_A_SLICE * 3)]

            async def read_up_to(stream: Messages, revision: int) -> None:
                while (message := await next_of(stream)).header.revision < revision:
                    assert message.bookmark

            reading = [asyncio.ensure_future(read_up_to(stream, 31)) for stream in streams]
            for number in range(30):
                fleet.register(topics=[("T1", (number, 1, 6, 0))], version=DataVersion(2, number))
                await asyncio.sleep(0)
            await asyncio.gather(*reading)


async def test_one_watcher_too_many_is_told_to_try_again_until_another_goes() -> None:
    async with serving(watches=2) as server:
        async with server.watch("T1") as first, server.watch("T1") as second, server.watch("T1") as third:
            await next_of(first)
            await next_of(second)
            assert (await failure_of(third)).reason == Reason.OVERLOADED
        async with server.watch("T1") as again:
            await next_of(again)


async def test_a_name_server_that_shuts_down_takes_no_watch() -> None:
    async with serving() as server:
        server.fleet.state.frozen = True
        async with server.watch("T1") as stream:
            assert (await failure_of(stream)).reason == Reason.SHUTTING_DOWN


async def test_at_a_shutdown_each_watch_is_told_another_time_to_come_back_elsewhere() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(server.watch("T1")) for _ in range(50)]
        for stream in streams:
            await next_of(stream)
        waiting = [asyncio.ensure_future(failure_of(stream)) for stream in streams]
        await server.watchers.close()
        errors = [FAILURES.rich(error) for error in await asyncio.gather(*waiting)]
        assert {error.reason for error in errors} == {"SHUTTING_DOWN"}
        seconds = [error.retry_after_seconds or 0.0 for error in errors]
        assert len(set(seconds)) > 40
        assert min(seconds) >= watches.FIRST_RETURN_SECONDS
        assert max(seconds) <= watches.FIRST_RETURN_SECONDS + 1.0 + 50 / watches.RETURNS_PER_SECOND


async def test_each_watch_expires_after_another_time_of_its_last_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, AsyncExitStack() as stack:
        loop, now = asyncio.get_running_loop(), [0.0]
        started = loop.time()
        monkeypatch.setattr(loop, "time", lambda: started + now[0])
        for _ in range(30):
            await next_of(await stack.enter_async_context(server.watch("T1")))
        expired = []
        for share in (0.0, 0.74, 0.875, 1.0):
            now[0] = share * limits.MAX_WATCH_SECONDS
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            failures = [stream.reader.failure for stream in server.watchers.after(0, 100)]
            expired.append(sum(failure is not None for failure in failures))
        assert expired[:2] == [0, 0]
        assert 5 < expired[2] < 25
        assert {failure and failure.reason for failure in failures} == {Reason.WATCH_EXPIRED}


async def test_a_watch_that_expires_while_it_ends_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, server.watch("T1") as watch:
        await next_of(watch)
        (stream,) = server.watchers.after(0, 100)
        await server.watchers.close()
        loop = asyncio.get_running_loop()
        expired = loop.time() + limits.MAX_WATCH_SECONDS
        monkeypatch.setattr(loop, "time", lambda: expired)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert stream.reader.failure is not None
        assert stream.reader.failure.reason == Reason.SHUTTING_DOWN


async def test_a_snapshot_that_is_followed_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WATCH_SECONDS", 0.0)

    async with serving() as server:
        with server.watchers.following("StreamRouteSnapshot", "peer") as follower:
            async with server.watch("T1") as stream:
                await next_of(stream)
                assert (await failure_of(stream)).reason == Reason.WATCH_EXPIRED
            assert follower.reader.failure is None


async def test_topics_that_are_not_there_are_told_when_the_name_server_is_warm() -> None:
    async with serving(warm_up_seconds=30.0) as server, server.watch("T1", "T3") as stream:
        assert [change.topic for change in (await next_of(stream)).changes] == ["T1"]
        server.fleet.clock.advance(30.0)
        waiting = asyncio.ensure_future(next_of(stream))
        await asyncio.sleep(0)
        await server.watchers.announce_missing()
        (change,) = (await waiting).changes
        assert (change.topic, change.HasField("route")) == ("T3", False)


async def test_a_watch_names_as_much_as_it_may_and_no_more() -> None:
    async with serving() as server:
        topics = [f"T{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        prefixes = ["", *(f"p{number}" for number in range(1, limits.MAX_WATCH_PREFIXES))]
        async with server.watch(*topics, topic_prefixes=prefixes) as stream:
            await next_of(stream)
        for names, beginnings in (([*topics, "T"], prefixes), (topics, [*prefixes, "p"])):
            async with server.watch(*names, topic_prefixes=beginnings) as stream:
                assert (await failure_of(stream)).reason == Reason.LIMIT_EXCEEDED
        async with server.watch("T", topic_prefixes=["T", "a\tb"]) as stream:
            assert (await failure_of(stream)).violations[0].field == "topic_prefixes[1]"
        too_much = pb.WatchTopicRoutesRequest(topics=["one"]), pb.WatchTopicRoutesRequest(removed_topics=[*topics, "T"])
        for update in too_much:
            async with server.watch_of(Requests(pb.WatchTopicRoutesRequest(topics=topics), update)) as stream:
                while not (await next_of(stream)).bookmark:
                    pass
                assert (await failure_of(stream)).reason == Reason.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("fields", "field"),
    [({}, "topics"), *(({name: ["T1"]}, name) for name in ("removed_topics", "removed_topic_prefixes"))],
)
async def test_a_watch_begins_with_names_and_removes_none(fields: dict[str, list[str]], field: str) -> None:
    async with serving() as server, server.watch(**fields) as stream:
        assert (await failure_of(stream)).violations[0].field == field


async def test_a_watch_that_fails_while_it_begins_leaves_nothing_behind() -> None:
    async with serving() as server:
        with refuses(Reason.REVISION_NOT_REACHED):
            async with server.watchers.watching(Subscription(frozenset(["T1"])), 5, "peer"):
                raise AssertionError("that revision is still to come")
        assert len(server.watchers) == 0
        await server.names_have_left()
        assert server.watchers.hub.name_count == 0


async def test_a_watch_that_finds_no_room_waits_for_what_others_have_left() -> None:
    async with serving(watched_names=2) as server:
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)
            async with server.watch("T1") as refused:
                assert (await failure_of(refused)).reason == Reason.LIMIT_EXCEEDED
        async with server.watch("T1", "T2") as stream:
            await next_of(stream)


async def test_an_update_is_applied_when_all_that_waits_has_been_sent() -> None:
    async with serving() as server:
        requests = Requests(pb.WatchTopicRoutesRequest(topics=["T1"]))
        async with server.watch_of(requests) as stream:
            first = await next_of(stream)
            assert (first.request_count, [change.topic for change in first.changes]) == (1, ["T1"])
            for _ in range(3):
                requests.send("T2", removed_topics=["T1"])
            await until(lambda: requests.not_read <= 2)
            (watcher,) = server.watchers.after(0, 2)
            assert isinstance(watcher.reader, RouteWatch)
            assert watcher.reader.request_count == 1, "the reader has not asked for more"
            second = await next_of(stream)
            assert (second.request_count, [change.topic for change in second.changes]) == (2, ["T2"])
            assert ((await next_of(stream)).request_count, (await next_of(stream)).request_count) == (3, 4)


async def test_a_watch_may_become_empty_and_gives_back_the_names_that_it_leaves() -> None:
    async with serving(watched_names=2) as server:
        requests = Requests(pb.WatchTopicRoutesRequest(topics=["T1", "T2"]))
        names = server.shares.watched_names
        async with server.watch_of(requests) as stream:
            await next_of(stream)
            assert names.used == 2
            requests.send(removed_topics=["T1", "T2"])
            assert (await next_of(stream)).request_count == 2
            assert names.used == 0
            requests.send("T1", topic_prefixes=["T"])
            assert len((await next_of(stream)).changes) == 2
            assert names.used == 2
            requests.send("T3")
            assert (await failure_of(stream)).reason == Reason.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("update", "field"),
    [
        (pb.WatchTopicRoutesRequest(zone_name="z"), "zone_name"),
        (pb.WatchTopicRoutesRequest(resume_after=pb.ResumePoint(epoch="e")), "resume_after"),
        (pb.WatchTopicRoutesRequest(topics=["a\tb"]), "topics[0]"),
        (pb.WatchTopicRoutesRequest(topic_prefixes=["T", "x" * 401]), "topic_prefixes[1]"),
    ],
)
async def test_an_update_is_refused_by_the_rules_of_an_open_watch(
    update: pb.WatchTopicRoutesRequest, field: str
) -> None:
    opening = pb.WatchTopicRoutesRequest(topics=["T1"])
    async with serving() as server, server.watch_of(Requests(opening, update)) as stream:
        await next_of(stream)
        error = await failure_of(stream)
        assert error.reason == Reason.INVALID_FIELD
        assert error.violations[0].field == field
        assert error.metadata["request"] == "2"


class _Reader(Caller):
    """A context whose reader takes messages while it may."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.may_read = asyncio.Event()
        self.requests: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self.requests.get()

    async def write(self, message: bytes) -> None:
        await self.may_read.wait()
        self.messages.put_nowait(message)


async def test_the_requests_of_a_watch_count_as_under_way_until_they_are_applied() -> None:
    async with serving() as server:
        topics = [f"a-topic-{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        request = pb.WatchTopicRoutesRequest(topics=topics).SerializeToString()
        shares, reader = FairShares(request_bytes=len(request)), _Reader()
        handlers: Any = handlers_of_server(30.0, shares=shares).of(ROUTE_SERVICE, [server.calls])

        for _ in range(2):
            reader.requests.put_nowait(request)
        stream = asyncio.create_task(handlers["WatchTopicRoutes"].stream_stream(None, reader))
        await until(reader.requests.empty)
        await until(lambda: shares.request_bytes.used)
        assert shares.request_bytes.used == len(request), "the client has not read what comes before its answer"
        reader.may_read.set()
        await until(lambda: not shares.request_bytes.used)
        assert shares.streams.used == 1
        await stop(stream)
        assert (shares.streams.used, shares.request_bytes.used) == (0, 0)


async def test_a_watch_that_opens_waits_for_one_of_each_other_owner() -> None:
    async with serving() as server:
        began: list[str] = []

        async def opened(topic: str) -> None:
            subscription, sharer = Subscription(frozenset([topic])), Sharer(topic[0])
            async with server.watchers.watching(subscription, None, "peer", sharer=sharer):
                began.append(topic)

        async with server.watchers._beginning.held_for("a"):
            tasks = []
            for topic in ("a1", "a2", "b1"):
                tasks.append(asyncio.create_task(opened(topic)))
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert began == ["b1", "a1", "a2"]


async def test_watchers_are_listed_oldest_first_with_what_waits_for_them() -> None:
    async with (
        serving() as server,
        server.watch("T1", "T2", topic_prefixes=["T"]) as first,
        server.watch("T3") as second,
    ):
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


async def test_pages_of_watchers_are_bounded_and_go_on_where_the_last_one_ended() -> None:
    async with serving() as server:
        with ExitStack() as first, ExitStack() as others:
            first.enter_context(server.watchers.following("First", "peer"))
            for _ in range(limits.MAX_WATCHER_PAGE_SIZE + 1):
                others.enter_context(server.watchers.following("StreamRouteSnapshot", "peer"))
            page = await server.listed(page_size=1)
            assert [row.call for row in page.watchers] == ["First"]
            first.close()
            full = await server.listed(page_size=limits.MAX_WATCHER_PAGE_SIZE + 1, page_token=page.next_page_token)
            assert len(full.watchers) == limits.MAX_WATCHER_PAGE_SIZE
            last = await server.listed(page_token=full.next_page_token)
            assert [(row.call, row.topic_count) for row in last.watchers] == [("StreamRouteSnapshot", 0)]
            assert last.next_page_token == ""


async def test_the_lag_of_a_watch_is_from_the_first_change_that_waited_until_its_message_has_left() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        waiting = asyncio.ensure_future(next_of(stream))
        (watcher,) = server.watchers.after(0, 2)
        await until(lambda: watcher.is_idle)
        server.fleet.unregister()
        await waiting
        server.fleet.clock.advance(1.5)  # the transport takes so long
        assert server.lags == []
        asking = asyncio.ensure_future(next_of(stream))
        await asyncio.sleep(0)
        assert server.lags == [1.5]
        await stop(asking)


async def test_a_bookmark_is_not_a_lag() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        for part in range(watches.BOOKMARK_SECONDS):
            await run_cooperatively(server.watchers.hub.make_bookmarks_due(part, watches.BOOKMARK_SECONDS))
        asking = asyncio.ensure_future(next_of(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.lags == []
        await stop(asking)


class _SharedCaller(FakeEngineCall, Caller):
    """A context that can be sent what others are sent, too."""

    def __init__(self, sent: list[tuple[int, bytes]]) -> None:
        self.is_free = True
        self.sent = sent
        """By all of them: to how many a message was sent at once, and the message."""

    def write_to_all(self, streams: Sequence[_SharedCaller], message: bytes) -> None:
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
        requests = Requests(pb.WatchTopicRoutesRequest(topics=topics))
        opened = server.calls.WatchTopicRoutes(requests, cast("Context", caller))
        stream = await stack.enter_async_context(aclosing(opened))  # type: ignore[type-var]
        await next_of(stream)
        waiting.append(asyncio.ensure_future(next_of(stream)))
    await until(lambda: all(watcher.is_idle for watcher in server.watchers.after(0, 1_000)))
    return callers, waiting


async def test_a_change_is_sent_once_to_all_watches_that_are_told_the_same_without_their_tasks() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 30, "T1")
        _, of_both = await _shared_watches(stack, server, 5, "T1", "T2")
        server.fleet.register(topics=[("T1", (7, 1, 6, 0)), "T2"], version=DataVersion(2, 1))
        await until(lambda: callers[0].sent)
        ((streams, message),) = callers[0].sent
        assert streams == 35
        told = pb.WatchTopicRoutesResponse.FromString(message)
        assert [change.topic for change in told.changes] == ["T1"]
        assert told.changes[0].route.queue_datas[0].read_queue_nums == 7
        assert told.bookmark
        assert told.header.revision == server.fleet.state.revision
        assert len(server.lags) == 35
        assert not any(task.done() for task in waiting + of_both)
        await stop(*waiting, *of_both)


async def test_a_change_is_sent_once_to_each_of_watches_that_take_several_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "ITEMS_OF_A_MESSAGE", SLICE)
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 3, "T1")
        server.fleet.unregister()
        await until(lambda: len(callers[0].sent) == 3)
        assert [streams for streams, _ in callers[0].sent] == [1, 1, 1]
        await stop(*waiting)


async def test_a_watch_whose_client_has_not_taken_the_last_message_is_told_by_its_own_task() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 3, "T1")
        callers[1].is_free = False
        request, context = Requests(pb.WatchTopicRoutesRequest(topics=["T1"])), _SharedCaller(callers[0].sent)
        opened = server.calls.WatchTopicRoutes(request, cast("Context", context))
        await next_of(await stack.enter_async_context(aclosing(opened)))  # type: ignore[type-var]
        # The task of this one has not come back for more.
        server.fleet.register(topics=[("T1", (7, 1, 6, 0))], version=DataVersion(2, 1))
        told = await waiting[1]
        assert told.changes[0].route.queue_datas[0].read_queue_nums == 7
        assert [count for count, _ in callers[0].sent] == [2]
        callers[1].is_free = True  # its task has not come back for more either
        server.fleet.register(topics=[("T1", (8, 1, 6, 0))], version=DataVersion(3, 1))
        await until(lambda: len(callers[0].sent) == 2)
        assert callers[0].sent[1][0] == 2
        await stop(*waiting)


async def test_a_watch_with_many_changed_topics_is_told_by_its_own_task() -> None:
    topics = [f"T{number}" for number in range(watches.SHARED_TOPICS + 1)]
    fleet = Fleet()
    fleet.register(topics=topics)

    async with serving(fleet) as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 1, *topics)
        fleet.register(topics=[(topic, (7, 1, 6, 0)) for topic in topics], version=DataVersion(2, 1))
        assert len((await waiting[0]).changes) == len(topics)
        assert not callers[0].sent
        await stop(*waiting)


async def test_an_idle_watch_that_must_end_ends_by_its_own_task() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 2, "T1")
        for watcher in server.watchers.after(0, 2):
            watcher.reader.failure = Refused(Reason.WATCH_EXPIRED, "it has been open for long")
        server.fleet.unregister()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(error, Refused) and error.reason for error in ended] == [Reason.WATCH_EXPIRED] * 2
        assert not callers[0].sent
