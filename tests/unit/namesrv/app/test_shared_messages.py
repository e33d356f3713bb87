"""A message that is the same for many watches: sent once to all of them, or by the task of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import cast

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.app import watches
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import DataVersion
from namesrv.grpc_api.handlers import Context
from tests.support.calls_from_nowhere import Caller
from tests.support.core_fleet import Fleet
from tests.support.fakes.engine_call import FakeEngineCall
from tests.unit.namesrv.worlds.watching import Requests, Server, next_of, serving


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


async def test_a_change_is_sent_once_to_all_watches_that_are_told_the_same_without_their_tasks() -> None:
    async with serving() as server, AsyncExitStack() as stack:
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
        assert told.header.revision == server.fleet.state.revision
        assert server.watchers.lag.buckets()[-1][1] == 35
        assert not any(task.done() for task in waiting + of_both)
        await _stop(waiting + of_both)


async def test_a_watch_whose_client_has_not_taken_the_last_message_is_told_by_its_own_task() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 3, "T1")
        callers[1].is_free = False
        server.fleet.register(topics=[("T1", (7, 1, 6, 0))], version=DataVersion(2, 1))
        told = await waiting[1]
        assert told.changes[0].route.queue_datas[0].read_queue_nums == 7
        assert [count for count, _ in callers[0].sent] == [2]
        await _stop(waiting)


async def test_a_watch_with_many_changed_topics_is_told_by_its_own_task() -> None:
    topics = [f"T{number}" for number in range(watches.SHARED_TOPICS + 1)]
    fleet = Fleet()
    fleet.register(topics=topics)

    async with serving(fleet) as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 1, *topics)
        fleet.register(topics=[(topic, (7, 1, 6, 0)) for topic in topics], version=DataVersion(2, 1))
        assert len((await waiting[0]).changes) == len(topics)
        assert not callers[0].sent
        await _stop(waiting)


async def test_an_idle_watch_that_must_end_ends_by_its_own_task() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        callers, waiting = await _shared_watches(stack, server, 2, "T1")
        await server.watchers.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(error, Refused) and error.reason for error in ended] == [
            Reason.SHUTTING_DOWN,
            Reason.SHUTTING_DOWN,
        ]
        assert not callers[0].sent
