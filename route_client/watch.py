"""The watch of a client: its topics, its requests, its checked messages, and where the next one resumes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from groundwork.intake import Intake, IntakeLimits, TooMuchSent
from route_client.cache import Answer, Origin, Removal
from route_client.errors import TooManyTopicsError
from route_client.namesrv import Namesrv, WatchRequests
from route_client.route import from_wire

# The topics that the client keeps. Pure.

Additions = dict[str, int]
"""Topics, each with the number of its addition: a topic that is dropped and added again begins anew."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The revision up to which everything has been received."""

    epoch: str
    revision: int


@dataclass(frozen=True, slots=True)
class WatchedUpTo:
    """Where the last watch ended."""

    endpoint: Endpoint
    topics: Additions
    """The topics that its last bookmark counts."""
    point: ResumePoint


class KeptTopics:
    """All topics that the client keeps, and up to where they have been watched."""

    def __init__(self, max_topics: int) -> None:
        """Takes how many they may be."""
        self._max_topics = max_topics
        self._additions = 0
        self.additions: Additions = {}
        self.watched: WatchedUpTo | None = None

    def add(self, topic: str) -> bool:
        """Keeps a topic; returns whether it is new.

        Raises:
            TooManyTopicsError: There are too many already.
        """
        if topic in self.additions:
            return False
        if len(self.additions) >= self._max_topics:
            raise TooManyTopicsError(f"{self._max_topics} topics are kept already: forget one before {topic!r}")
        self._additions += 1
        self.additions[topic] = self._additions
        return True

    def drop(self, topic: str) -> None:
        """Keeps a topic no longer, if it was kept."""
        self.additions.pop(topic, None)

    def resume_at(self, endpoint: Endpoint) -> WatchedUpTo | None:
        """Where a watch at a name server can resume, and with which topics; None if it has to begin anew."""
        if self.watched is None or self.watched.endpoint != endpoint:
            return None
        topics = dict(self.watched.topics.items() & self.additions.items())
        return WatchedUpTo(endpoint, topics, self.watched.point) if topics else None

    def __contains__(self, topic: object) -> bool:
        return topic in self.additions

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.additions))

    def __len__(self) -> int:
        return len(self.additions)


# The requests and the messages of one WatchTopicRoutes stream, checked. Pure: requests out, messages in, answers out.


class WatchBroken(Exception):
    """The stream does not keep the contract: it must be opened again, from the beginning."""


WATCH_LIMITS = IntakeLimits(bytes=1 << 30, rows=1_000_000, seconds=600.0)
"""The most that a watch may bring from one bookmark to the next, or until the first: twice the bytes of all routes that
a client keeps. A name server sends a bookmark at least every 30 s to a reader that keeps up."""


class WatchStream:
    """One watch. Its owner sends the requests and passes on the messages.

    At most one request is unanswered: topics that come meanwhile are gathered into the next one.
    """

    def __init__(
        self,
        topics: Additions,
        up_to_date: set[str],
        resume: ResumePoint | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens nothing.

        Args:
            topics: The topics of the first request; at least one.
            up_to_date: The topics whose current route, or the lack of one, the name server has sent. It also sends
                their changes. The stream adds and removes them. A name server that is not warm sends nothing about
                unknown topics.
            resume: Where an earlier watch of these topics at this name server ended.
            monotonic: The clock, in seconds.
        """
        self._intake = Intake("the watch since its last bookmark", WATCH_LIMITS, monotonic)
        self._asked = dict(topics)
        self._requests = 1
        self._answered = 0
        self._up_to_date = up_to_date
        self._told = set(topics) if resume else set[str]()
        self._resume = resume
        self._epoch = resume.epoch if resume else None
        self._origin: Origin | None = None
        self._revision = resume.revision if resume else -1
        self.counted: Additions = self._asked if resume else {}
        """The topics whose routes have been received up to the resume point."""

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where another watch of the counted topics can resume; None if it must start from the beginning."""
        return self._resume

    @property
    def stands(self) -> bool:
        """Whether a first bookmark has come: the current routes have been received."""
        return self._answered > 0

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no bookmark yet that counts it."""
        return self._answered < self._requests

    def opening(self) -> pb.WatchTopicRoutesRequest:
        """Returns the first request."""
        request = pb.WatchTopicRoutesRequest(topics=sorted(self._asked))
        if self._resume is not None:
            request.resume_after.epoch = self._resume.epoch
            request.resume_after.revision = self._resume.revision
        return request

    def update(self, topics: Additions) -> pb.WatchTopicRoutesRequest | None:
        """Returns the next request, or None if these topics are watched, or a request has no answer yet.

        A request either removes or adds: both together could be larger than a name server accepts.
        """
        if self.is_waiting:
            return None
        if removed := {topic for topic, _ in self._asked.items() - topics.items()}:
            request = pb.WatchTopicRoutesRequest(removed_topics=sorted(removed))
            self._asked = {topic: number for topic, number in self._asked.items() if topic not in removed}
            self._up_to_date -= removed
            self._told -= removed
        elif added := dict(topics.items() - self._asked.items()):
            request = pb.WatchTopicRoutesRequest(topics=sorted(added))
            self._asked = self._asked | added
        else:
            return None
        self._requests += 1
        return request

    def take(self, response: pb.WatchTopicRoutesResponse) -> list[Answer | ValueError]:
        """The answers of one message, in order; a ValueError in place of one that cannot be read.

        Raises:
            WatchBroken: The stream changed its epoch, its revisions or its counts of requests went back, or it brings
                too much.
        """
        try:
            self._intake.take(response.ByteSize(), len(response.changes))
        except TooMuchSent as error:
            raise self._broken(str(error)) from error
        origin = self._check(response.header)
        revision = response.header.revision
        answers = [_answer(change, origin, revision) for change in response.changes if change.topic in self._asked]
        self._told.update(answer.topic for answer in answers if isinstance(answer, Answer))
        if response.bookmark:
            self._count(response.request_count)
            self._intake.begin_anew()
            self._resume = ResumePoint(origin.epoch, revision)
            self._up_to_date |= self._told
            self._told.clear()
        return answers

    def _count(self, requests: int) -> None:
        least = max(1, self._answered)
        if not least <= requests <= self._requests:
            raise self._broken(f"a bookmark of the watch counts {requests} requests, not {least} to {self._requests}")
        self._answered = requests
        if not self.is_waiting:
            self.counted = self._asked

    def _check(self, header: route_data_pb2.NamesrvHeader) -> Origin:
        origin = Origin(header.namesrv_name, header.epoch)
        if self._epoch not in {None, header.epoch} or self._origin not in {None, origin}:
            raise self._broken(f"the watch went from epoch {self._epoch} to {header.epoch} of {header.namesrv_name}")
        if header.revision < self._revision:
            raise self._broken(f"the watch went back from revision {self._revision} to {header.revision}")
        self._origin, self._epoch, self._revision = origin, header.epoch, header.revision
        return origin

    def _broken(self, problem: str) -> WatchBroken:
        self._resume = None
        return WatchBroken(problem)


def _answer(change: pb.TopicRouteChange, origin: Origin, revision: int) -> Answer | ValueError:
    try:
        route = from_wire(change.route) if change.HasField("route") else None
    except ValueError as error:
        return ValueError(f"the route of topic {change.topic!r}: {error}")
    removals = tuple(map(Removal.from_wire, change.removals))
    return Answer(change.topic, route, origin, revision, removals, change.route.ByteSize())


# The watch at one name server.

UPDATE_SECONDS = 0.05
"""Shortest time from one request of a watch to the next. A program that asks for one topic after the other must not
cost the name server a request for each."""

FROM_THE_BEGINNING = frozenset({"EPOCH_CHANGED", "REVISION_COMPACTED"})
"""Reasons why a watch cannot be resumed. It is opened again at once, without a resume point."""


@dataclass(slots=True)
class _OpenWatch:
    stream: WatchStream
    requests: WatchRequests
    asked_at: float
    """When the last request was sent."""
    heard_at: float
    """When the last request was sent or the last message came, whichever is later."""


class WatchSession:
    """Watches all kept topics at one name server, until something fails."""

    def __init__(
        self,
        namesrv: Namesrv,
        topics: KeptTopics,
        *,
        take: Callable[[Answer], object],
        refuse: Callable[[ValueError], None],
        up_to_date: set[str],
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
            up_to_date: The topics whose changes the watch receives. The session adds and removes them.
            stands: Called when the name server has shown that it watches.
            poll: Looks all topics up, as is done every ``resync_seconds``.
            resync_seconds: A stream that says nothing must not go unnoticed for ever.
            timeout_seconds: How long to wait for each message while a request has no answer.
        """
        self._namesrv = namesrv
        self._topics = topics
        self._take = take
        self._refuse = refuse
        self._up_to_date = up_to_date
        self._stands = stands
        self._poll = poll
        self._resync_seconds = resync_seconds
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._open: _OpenWatch | None = None

    async def run(self, topics_changed: asyncio.Event) -> None:
        """Watches until cancelled.

        Raises:
            CallError: The stream ended, or the name server did not answer.
            WatchBroken: The stream did not keep the contract.
        """
        resync_at = self._loop.time() + self._resync_seconds
        reader: asyncio.Task[None] | None = None
        if len(self._topics) == 0:
            self._stands()
        try:
            while True:
                topics_changed.clear()
                if reader is None and len(self._topics) > 0:
                    opened = self._opened()
                    reader = asyncio.create_task(self._follow(opened, topics_changed), name="route-client-watch")
                next_request = self._update()
                await _wait(topics_changed, reader, max(0.0, min(resync_at, next_request) - self._loop.time()))
                if self._loop.time() >= resync_at:
                    await self._poll()
                    resync_at = self._loop.time() + self._resync_seconds
        finally:
            self._up_to_date.clear()
            if reader is not None:
                await _cancelled(reader)

    def _opened(self) -> _OpenWatch:
        """Begins a watch: where the last one ended, if it was here. There must be topics."""
        resume = self._topics.resume_at(self._namesrv.endpoint)
        self._up_to_date.clear()
        if resume is not None:
            stream = WatchStream(resume.topics, self._up_to_date, resume.point)
        else:
            stream = WatchStream(self._topics.additions, self._up_to_date)
        now = self._loop.time()
        self._open = _OpenWatch(stream, WatchRequests(stream.opening()), now, now)
        return self._open

    def _update(self) -> float:
        """Asks for the topics that came and went, if it is time; returns when to try again."""
        if self._open is None:
            return float("inf")
        now, stream = self._loop.time(), self._open.stream
        if stream.is_waiting:
            late_at = self._open.heard_at + self._timeout_seconds
            if now >= late_at:
                error = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "did not answer a request of the watch in time")
                raise CallError(self._namesrv.endpoint, error)
            return late_at
        if now < self._open.asked_at + UPDATE_SECONDS:
            return self._open.asked_at + UPDATE_SECONDS
        request = stream.update(self._topics.additions)
        if request is None:
            return float("inf")
        self._open.requests.put(request)
        self._open.asked_at = self._open.heard_at = now
        return now + self._timeout_seconds

    async def _follow(self, opened: _OpenWatch, wake: asyncio.Event) -> None:
        """Reads the watch, and once more from the beginning; never ends without an error."""
        try:
            await self._read(opened, wake)
        except CallError as failed:
            resumes = opened.stream.resume_point is not None and len(self._topics) > 0
            if failed.error.reason not in FROM_THE_BEGINNING or not resumes:
                raise
            self._topics.watched = None
            opened = self._opened()
            wake.set()
            await self._read(opened, wake)

    async def _read(self, opened: _OpenWatch, wake: asyncio.Event) -> None:
        """Reads a watch; sets the event when a request has its answer, so that the next one can be sent."""
        stream = opened.stream
        watch = self._namesrv.watch(opened.requests)
        try:
            while True:
                response = await self._namesrv.next_of(watch)
                opened.heard_at = self._loop.time()
                was_waiting = stream.is_waiting
                try:
                    answers = stream.take(response)
                finally:
                    point = stream.resume_point
                    watched = None if point is None else WatchedUpTo(self._namesrv.endpoint, stream.counted, point)
                    self._topics.watched = watched
                self._take_all(answers)
                if stream.stands:
                    self._stands()
                if was_waiting and not stream.is_waiting:
                    wake.set()
        finally:
            opened.requests.end()
            await watch.aclose()

    def _take_all(self, answers: Iterable[Answer | ValueError]) -> None:
        for answer in answers:
            if isinstance(answer, Answer):
                self._take(answer)
            else:
                self._refuse(answer)


async def _wait(changed: asyncio.Event, reader: asyncio.Task[None] | None, seconds: float) -> None:
    """Returns when the event is set or the time is over; raises what the reader ended with."""
    waiting = asyncio.ensure_future(changed.wait())
    try:
        tasks = [waiting] if reader is None else [waiting, reader]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancelled(waiting)
    if reader is not None and reader.done():
        reader.result()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
