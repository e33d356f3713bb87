"""Watches: the topics of each stream, its checked messages, and where it resumes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from groundwork.intake import Intake, IntakeLimits, TooMuchSent
from route_client.cache import Answer, Origin, Removal
from route_client.errors import TooManyTopicsError
from route_client.namesrv import Namesrv
from route_client.route import from_wire

# The messages of one WatchTopicRoutes stream, checked. Pure: messages in, answers out.


class WatchBroken(Exception):
    """The stream does not keep the contract: it must be opened again, from the beginning."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Up to where everything has been received."""

    epoch: str
    revision: int


WATCH_LIMITS = IntakeLimits(bytes=1 << 30, rows=1_000_000, seconds=600.0)
"""The most that a watch may bring from one bookmark to the next, or until the first. A name server sends one at least
every 30 s to a reader that keeps up; the routes of 500 topics on 5,000 groups each have 260 MB."""


class WatchStream:
    """One watch of some topics."""

    def __init__(
        self,
        topics: Collection[str],
        resume: ResumePoint | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens nothing.

        Args:
            topics: What is watched.
            resume: Where an earlier watch of the same topics at this name server ended.
            monotonic: The clock, in seconds.
        """
        self._intake = Intake("the watch since its last bookmark", WATCH_LIMITS, monotonic)
        self._topics = frozenset(topics)
        self._resume = resume
        self._epoch = resume.epoch if resume else None
        self._origin: Origin | None = None
        self._revision = resume.revision if resume else -1
        self.told = set(topics) if resume else set[str]()
        """Topics whose current route, or that there is none, has been received. A name server that is not warm says
        nothing of topics that it does not know."""
        self.stands = False
        """Whether a first bookmark has come: the current routes have been received."""

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where another watch of the same topics can go on; None if it must start from the beginning."""
        return self._resume

    def request(self) -> pb.WatchTopicRoutesRequest:
        """What to ask."""
        request = pb.WatchTopicRoutesRequest(topics=sorted(self._topics))
        if self._resume is not None:
            request.resume_after.epoch = self._resume.epoch
            request.resume_after.revision = self._resume.revision
        return request

    def take(self, response: pb.WatchTopicRoutesResponse) -> list[Answer | ValueError]:
        """The answers of one message, in order; a ValueError in place of one that cannot be read.

        Raises:
            WatchBroken: The stream changed its epoch, its revisions went back, or it brings too much.
        """
        try:
            self._intake.take(response.ByteSize(), len(response.changes))
        except TooMuchSent as error:
            self._resume = None
            raise WatchBroken(str(error)) from error
        origin = self._check(response.header)
        revision = response.header.revision
        answers = [_answer(change, origin, revision) for change in response.changes if change.topic in self._topics]
        self.told.update(answer.topic for answer in answers if isinstance(answer, Answer))
        if response.bookmark:
            self._intake.begin_anew()
            self._resume = ResumePoint(origin.epoch, revision)
            self.stands = True
        return answers

    def _check(self, header: route_data_pb2.NamesrvHeader) -> Origin:
        origin = Origin(header.namesrv_name, header.epoch)
        if self._epoch not in {None, header.epoch} or self._origin not in {None, origin}:
            self._resume = None
            raise WatchBroken(f"the watch went from epoch {self._epoch} to {header.epoch} of {header.namesrv_name}")
        if header.revision < self._revision:
            self._resume = None
            raise WatchBroken(f"the watch went back from revision {self._revision} to {header.revision}")
        self._origin, self._epoch, self._revision = origin, header.epoch, header.revision
        return origin


def _answer(change: pb.TopicRouteChange, origin: Origin, revision: int) -> Answer | ValueError:
    try:
        route = from_wire(change.route) if change.HasField("route") else None
    except ValueError as error:
        return ValueError(f"the route of topic {change.topic!r}: {error}")
    removals = tuple(map(Removal.from_wire, change.removals))
    return Answer(change.topic, route, origin, revision, removals, change.route.ByteSize())


# The topics that the client keeps, in parts that are watched by one stream each. Pure.

TOPICS_PER_STREAM = 500
"""A stream's topics never change, so each new topic means opening its part's stream again, and having the routes of the
part sent again. This bounds how many."""

GATHER_SECONDS = 0.05
"""How long a part waits for more new topics before its stream is opened again, ..."""

REOPEN_SECONDS = 1.0
"""... and how long at least from one opening to the next."""


@dataclass(frozen=True, slots=True)
class WatchedUpTo:
    """Where the last watch of a part ended."""

    endpoint: Endpoint
    topics: frozenset[str]
    point: ResumePoint


@dataclass(eq=False, slots=True)
class TopicPart:
    """Up to ``TOPICS_PER_STREAM`` topics."""

    topics: set[str] = field(default_factory=set)
    changed_at: float = 0.0
    """When a topic was added or dropped last."""
    watched: WatchedUpTo | None = None

    def resume_at(self, endpoint: Endpoint) -> ResumePoint | None:
        """Where a watch at a name server can go on; None if it has to start with the current routes."""
        if self.watched is None or self.watched.endpoint != endpoint or self.watched.topics != self.topics:
            return None
        return self.watched.point


class KeptTopics:
    """All topics that the client keeps."""

    def __init__(self, max_topics: int, clock: Callable[[], float]) -> None:
        """Takes how many they may be, and a monotonic clock in seconds."""
        self._max_topics = max_topics
        self._clock = clock
        self._part_of: dict[str, TopicPart] = {}
        self.parts: list[TopicPart] = []

    def add(self, topic: str) -> bool:
        """Keeps a topic; returns whether it is new.

        Raises:
            TooManyTopicsError: There are too many already.
        """
        if topic in self._part_of:
            return False
        if len(self._part_of) >= self._max_topics:
            raise TooManyTopicsError(f"{self._max_topics} topics are kept already: forget one before {topic!r}")
        part = next((part for part in self.parts if len(part.topics) < TOPICS_PER_STREAM), None)
        if part is None:
            part = TopicPart()
            self.parts.append(part)
        part.topics.add(topic)
        part.changed_at = self._clock()
        self._part_of[topic] = part
        return True

    def drop(self, topic: str) -> None:
        """Keeps a topic no longer, if it was kept."""
        part = self._part_of.pop(topic, None)
        if part is not None:
            part.topics.discard(topic)
            part.changed_at = self._clock()

    def __contains__(self, topic: object) -> bool:
        return topic in self._part_of

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._part_of))

    def __len__(self) -> int:
        return len(self._part_of)


# The watches at one name server: a stream for each part of the topics.

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
        take: Callable[[Answer], object],
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
