"""Open streams of changes: their limits and order, their end at a shutdown, and their list with how far each lags."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app import watches
from namesrv.app.quotas import FairShares
from namesrv.app.watches import WatchStreams
from namesrv.app.worker import Worker
from namesrv.app.writer import run_cooperatively
from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion
from namesrv.core.slices import SLICE
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch.hub import RouteWatch
from namesrv.core.watch.subscription import Subscription
from namesrv.error_codes import FAILURES
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.grpc_api.streams import WatchCalls
from namesrv.server.listener import ROUTE_SERVICE
from namesrv_common.server.shares import Sharer
from tests.support.calls_from_nowhere import Caller
from tests.support.core_fleet import B
from tests.support.partial_services import whole
from tests.support.refusals import refuses
from tests.unit.namesrv.worlds.watching import Messages, Requests, failure_of, next_of, serving

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
    async with serving(max_watchers=2) as server:
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
        errors = [FAILURES.table.rich(error) for error in await asyncio.gather(*waiting)]
        assert {error.reason for error in errors} == {"SHUTTING_DOWN"}
        seconds = [error.retry_after_seconds or 0.0 for error in errors]
        assert len(set(seconds)) > 40
        assert min(seconds) >= watches.FIRST_RETURN_SECONDS
        assert max(seconds) <= watches.FIRST_RETURN_SECONDS + 1.0 + 50 / watches.RETURNS_PER_SECOND


async def test_each_watch_expires_after_another_time_of_its_last_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        loop, now = asyncio.get_running_loop(), [0.0]
        started = loop.time()
        monkeypatch.setattr(loop, "time", lambda: started + now[0])
        async with AsyncExitStack() as stack:
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


async def test_a_snapshot_that_is_followed_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WATCH_SECONDS", 0.0)

    async with serving() as server:
        with server.watchers.following("StreamRouteSnapshot", "peer") as follower:
            async with server.watch("T1") as stream:
                await next_of(stream)
                assert (await failure_of(stream)).reason == Reason.WATCH_EXPIRED
            assert follower.reader.failure is None


async def test_topics_that_are_not_there_are_told_when_the_name_server_is_warm() -> None:
    async with serving() as server:
        server.warm_up = WarmUp(server.fleet.state, server.fleet.clock, 30.0)
        server.watchers = WatchStreams(server.fleet.state, server.warm_up, server.fleet.clock)
        server.calls = WatchCalls(server.fleet.state, server.warm_up, server.watchers, Worker("reader"))
        async with server.running(), server.watch("T1", "T3") as stream:
            assert [change.topic for change in (await next_of(stream)).changes] == ["T1"]
            server.fleet.clock.advance(30.0)
            waiting = asyncio.ensure_future(next_of(stream))
            await asyncio.sleep(0)
            await server.watchers.announce_missing()
            (change,) = (await waiting).changes
            assert (change.topic, change.HasField("route")) == ("T3", False)


async def test_what_a_watch_may_ask_for_is_bounded() -> None:
    async with serving() as server:
        topics = [f"T{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        prefixes = [f"p{number}" for number in range(limits.MAX_WATCH_PREFIXES)]
        async with server.watch(*topics, topic_prefixes=prefixes) as stream:
            await next_of(stream)
        for names, beginnings in (([*topics, "T"], prefixes), (topics, [*prefixes, "p"])):
            async with server.watch(*names, topic_prefixes=beginnings) as stream:
                assert (await failure_of(stream)).reason == Reason.LIMIT_EXCEEDED


async def test_an_empty_prefix_is_of_all_topics_and_an_impossible_one_is_refused() -> None:
    async with serving() as server:
        async with server.watch(topic_prefixes=[""]) as stream:
            assert len((await next_of(stream)).changes) == 2
        for prefix in ("a\tb", "x" * 401):
            async with server.watch(topic_prefixes=["T", prefix]) as stream:
                error = await failure_of(stream)
                assert error.reason == Reason.INVALID_FIELD
                assert error.violations[0].field == "topic_prefixes[1]"


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
            async with asyncio.timeout(20):
                while requests.not_read > 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
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


async def test_an_update_is_refused_by_the_rules_of_an_open_watch() -> None:
    async with serving() as server:
        for update, field in (
            (pb.WatchTopicRoutesRequest(zone_name="z"), "zone_name"),
            (pb.WatchTopicRoutesRequest(resume_after=pb.ResumePoint(epoch="e")), "resume_after"),
            (pb.WatchTopicRoutesRequest(topics=["a\tb"]), "topics[0]"),
        ):
            async with server.watch_of(Requests(pb.WatchTopicRoutesRequest(topics=["T1"]), update)) as stream:
                await next_of(stream)
                error = await failure_of(stream)
                assert error.reason == Reason.INVALID_FIELD
                assert error.violations[0].field == field
                assert error.metadata["request"] == "2"


async def test_all_messages_together_may_not_name_more_than_a_watch_may_have() -> None:
    async with serving() as server:
        topics = [f"T{number}" for number in range(limits.MAX_WATCH_TOPICS)]
        update = pb.WatchTopicRoutesRequest(topics=["one-more"])
        async with server.watch_of(Requests(pb.WatchTopicRoutesRequest(topics=topics), update)) as stream:
            while not (await next_of(stream)).bookmark:
                pass
            assert (await failure_of(stream)).reason == Reason.LIMIT_EXCEEDED


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
        handlers: Any = handlers_of_server(30.0, shares=shares).of(ROUTE_SERVICE, whole(ROUTE_SERVICE, server.calls))

        for _ in range(2):
            reader.requests.put_nowait(request)
        stream = asyncio.create_task(handlers["WatchTopicRoutes"].stream_stream(None, reader))
        async with asyncio.timeout(20):
            while not reader.requests.empty():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            while not shares.request_bytes.used:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            assert shares.request_bytes.used == len(request), "the client has not read what comes before its answer"
            reader.may_read.set()
            while shares.request_bytes.used:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert shares.streams.used == 1
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
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


async def test_pages_of_watchers_go_on_where_the_last_one_ended_also_if_it_has_gone() -> None:
    async with serving() as server, server.watch("T1") as first, server.watch("T1", "T2") as second:
        await next_of(first)
        await next_of(second)
        page = await server.listed(page_size=1)
        assert len(page.watchers) == 1
        await first.aclose()  # type: ignore[attr-defined]
        last = await server.listed(page_size=1, page_token=page.next_page_token)
        assert ([row.topic_count for row in last.watchers], last.next_page_token) == ([2], "")


async def test_a_page_has_at_most_400_watchers() -> None:
    async with serving(max_watchers=1_000) as server:
        with ExitStack() as stack:
            for _ in range(limits.MAX_WATCHER_PAGE_SIZE + 1):
                stack.enter_context(server.watchers.following("StreamRouteSnapshot", "peer"))
            page = await server.listed(page_size=limits.MAX_WATCHER_PAGE_SIZE + 1)
            assert len(page.watchers) == limits.MAX_WATCHER_PAGE_SIZE
            rest = await server.listed(page_token=page.next_page_token)
            assert [(row.call, row.topic_count) for row in rest.watchers] == [("StreamRouteSnapshot", 0)]


async def test_the_lag_of_a_watch_is_from_the_first_change_that_waited_until_its_message_has_left() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        waiting = asyncio.ensure_future(next_of(stream))
        for _ in range(5):  # until the watch is idle
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


async def test_a_bookmark_is_not_a_lag() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        for part in range(watches.BOOKMARK_SECONDS):
            await run_cooperatively(server.watchers.hub.make_bookmarks_due(part, watches.BOOKMARK_SECONDS))
        asking = asyncio.ensure_future(next_of(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.watchers.lag.buckets()[-1] == ("+Inf", 0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
