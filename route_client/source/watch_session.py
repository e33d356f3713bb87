"""The watches at one name server: a stream for each part of the topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from groundwork.grpc_errors import CallError, RichError
from route_client.routes.cache import Answer
from route_client.source.namesrv import Namesrv
from route_client.source.topics import GATHER_SECONDS, REOPEN_SECONDS, KeptTopics, TopicPart, WatchedUpTo
from route_client.source.watch_stream import WatchBroken, WatchStream

FROM_THE_BEGINNING = frozenset({"EPOCH_CHANGED", "REVISION_COMPACTED"})
"""Reasons why a watch cannot be resumed. It is opened again at once, without a resume point."""


@dataclass(frozen=True, slots=True)
class _OpenStream:
    topics: frozenset[str]
    opened_at: float
    task: asyncio.Task[None]


class WatchSession:
    """Watches all kept topics at one name server, until something fails."""

    def __init__(
        self,
        namesrv: Namesrv,
        topics: KeptTopics,
        *,
        take: Callable[[Answer], None],
        refuse: Callable[[ValueError], None],
        told: Callable[[Iterable[str]], None],
        stands: Callable[[], None],
        poll: Callable[[], Awaitable[None]],
        resync_seconds: float,
        timeout_seconds: float,
    ) -> None:
        """Opens nothing yet.

        Args:
            namesrv: Where.
            topics: What.
            take: Gets each answer.
            refuse: Gets what is wrong with a route that cannot be read.
            told: Gets the topics of which the watch has said how they are, and will say every change.
            stands: Called when the name server has shown that it watches.
            poll: Looks all topics up, as is done every ``resync_seconds``.
            resync_seconds: A stream that says nothing must not go unnoticed for ever.
            timeout_seconds: How long to wait for each message until the watch stands.
        """
        self._namesrv = namesrv
        self._topics = topics
        self._take = take
        self._refuse = refuse
        self._told = told
        self._stands = stands
        self._poll = poll
        self._resync_seconds = resync_seconds
        self._timeout_seconds = timeout_seconds
        self._open: dict[TopicPart, _OpenStream] = {}

    async def run(self, topics_changed: asyncio.Event) -> None:
        """Watches until cancelled.

        Raises:
            CallError: A stream ended, or the name server did not answer.
            WatchBroken: A stream did not keep the contract.
        """
        loop = asyncio.get_running_loop()
        resync_at = loop.time() + self._resync_seconds
        if len(self._topics) == 0:
            self._stands()
        try:
            while True:
                topics_changed.clear()
                next_opening = await self._open_due_streams(loop.time())
                await self._wait(topics_changed, max(0.0, min(resync_at, next_opening) - loop.time()))
                if loop.time() >= resync_at:
                    await self._poll()
                    resync_at = loop.time() + self._resync_seconds
        finally:
            await _cancelled(stream.task for stream in self._open.values())

    async def _wait(self, topics_changed: asyncio.Event, seconds: float) -> None:
        """Returns when topics changed or the time is over; raises what a stream ended with."""
        changed = asyncio.ensure_future(topics_changed.wait())
        tasks = [stream.task for stream in self._open.values()]
        try:
            await asyncio.wait([changed, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled([changed])
        for task in tasks:
            if task.done():
                task.result()

    async def _open_due_streams(self, now: float) -> float:
        """Opens the streams whose time it is; returns when the next one's time is."""
        next_opening = float("inf")
        for part in self._topics.parts:
            was = self._open.get(part)
            if (was.topics if was is not None else frozenset()) == part.topics:
                continue
            due = max(part.changed_at + GATHER_SECONDS, was.opened_at + REOPEN_SECONDS if was else now)
            if due > now:
                next_opening = min(next_opening, due)
                continue
            if was is not None:
                await _cancelled([self._open.pop(part).task])
            if not part.topics:
                continue
            topics = frozenset(part.topics)
            task = asyncio.create_task(self._stream(part, topics), name="route-client-watch")
            self._open[part] = _OpenStream(topics, now, task)
        return next_opening

    async def _stream(self, part: TopicPart, topics: frozenset[str]) -> None:
        """Watches some topics; never ends without an error."""
        stream = WatchStream(topics, part.resume_at(self._namesrv.endpoint))
        try:
            await self._read(stream, part, topics)
        except WatchBroken:
            part.watched = None
            raise
        except CallError as failed:
            if failed.error.reason not in FROM_THE_BEGINNING or stream.resume_point is None:
                raise
            part.watched = None
            await self._read(WatchStream(topics), part, topics)

    async def _read(self, stream: WatchStream, part: TopicPart, topics: frozenset[str]) -> None:
        watch = self._namesrv.watch(stream.request())
        told_count = 0
        try:
            while True:
                async with asyncio.timeout(None if stream.stands else self._timeout_seconds):
                    response = await self._namesrv.next_of(watch)
                self._take_all(stream.take(response))
                if stream.resume_point is not None:
                    part.watched = WatchedUpTo(self._namesrv.endpoint, topics, stream.resume_point)
                if stream.stands and len(stream.told) != told_count:
                    told_count = len(stream.told)
                    self._told(stream.told)
                if stream.stands:
                    self._stands()
        except TimeoutError as late:
            error = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "opened no watch in time")
            raise CallError(self._namesrv.endpoint, error) from late
        finally:
            await watch.aclose()

    def _take_all(self, answers: Iterable[Answer | ValueError]) -> None:
        for answer in answers:
            if isinstance(answer, Answer):
                self._take(answer)
            else:
                self._refuse(answer)


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks and waits for their ends."""
    all_tasks = list(tasks)
    for task in all_tasks:
        task.cancel()
    await asyncio.gather(*all_tasks, return_exceptions=True)
