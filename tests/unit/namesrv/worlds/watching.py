"""What watches need of a name server, and its watchers; for use inside a loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any, Self

import pytest
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.app.quotas import FairShares
from namesrv.app.watches import WatchStreams
from namesrv.app.worker import Worker
from namesrv.core.errors import Refused
from namesrv.core.warm_up import WarmUp
from namesrv.grpc_api.admin import WatcherListCalls
from namesrv.grpc_api.streams import WatchCalls
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet

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

    def __init__(self, fleet: Fleet, max_watchers: int = 100, **most: int) -> None:
        self.fleet = fleet
        self.warm_up = WarmUp(fleet.state, fleet.clock, 0.0)
        self.shares = FairShares(None, watches=max_watchers, **most)
        self.watchers = WatchStreams(fleet.state, self.warm_up, fleet.clock, Random(1), self.shares)
        self.calls = WatchCalls(fleet.state, self.warm_up, self.watchers, Worker("reader"))
        self.lists = WatcherListCalls(fleet.state, self.watchers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watchers.notify_readers())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
        async with asyncio.timeout(20):
            while self.shares.watched_names.used:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)

    async def listed(self, **fields: Any) -> admin_service_pb2.ListWatchersResponse:
        return await self.lists.ListWatchers(admin_service_pb2.ListWatchersRequest(**fields), CONTEXT)


async def next_of(stream: Messages) -> pb.WatchTopicRoutesResponse:
    async with asyncio.timeout(20):
        return pb.WatchTopicRoutesResponse.FromString(await anext(stream))


async def failure_of(stream: Messages) -> Refused:
    with pytest.raises(Refused) as caught:
        async with asyncio.timeout(20):
            await anext(stream)
    return caught.value


@asynccontextmanager
async def serving(fleet: Fleet | None = None, max_watchers: int = 100, **most: int) -> AsyncIterator[Server]:
    """A name server with one broker. Its test must leave nothing in it."""
    if fleet is None:
        fleet = Fleet()
        fleet.register(topics=["T1", "T2"])
    server = Server(fleet, max_watchers, **most)
    async with server.running():
        yield server
    assert len(server.watchers) == 0
    await server.names_have_left()
    assert {kind: shares.used for kind, shares in server.shares.by_kind().items() if shares.used} == {}
