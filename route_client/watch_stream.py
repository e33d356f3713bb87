"""The topics that the client keeps, and the messages of one watch of them. Pure: requests out, messages in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.channels import ResponseBudget, ResponseLimits, ResponseTooLarge
from namesrv_common.endpoints import Endpoint
from route_client.cache import Answer, Origin, Removal
from route_client.errors import TooManyTopicsError

Additions = dict[str, int]
"""Topics, each with the number of its addition: a topic that is dropped and added again begins anew."""


@dataclass(frozen=True, slots=True)
class WatchedUpTo:
    """Where the last watch ended; before the first one, what lookups have brought."""

    endpoint: Endpoint
    topics: Additions
    """The topics that are known up to the revision."""
    origin: Origin
    revision: int
    """Everything up to it has been received."""


class KeptTopics:
    """All topics that the client keeps. It alone knows which are current, and where a watch resumes."""

    def __init__(self, max_topics: int) -> None:
        """Takes how many they may be."""
        self._max_topics = max_topics
        self._additions = 0
        self.additions: Additions = {}
        """The topics."""
        self.stream: WatchStream | None = None
        """The watch of these topics that is open."""
        self.watched: WatchedUpTo | None = None
        """Where the last watch ended, or the open one stands."""

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

    def looked_up(self, endpoint: Endpoint, origin: Origin, revision: int, topics: Iterable[str]) -> None:
        """Notes topics that a lookup has brought, so that the next watch there sends the reasons of later removals."""
        watched = self.watched or WatchedUpTo(endpoint, {}, origin, revision)
        is_same = (watched.endpoint, watched.origin) == (endpoint, origin)
        if self.stream is None and is_same and watched.revision <= revision:
            known = {topic: self.additions[topic] for topic in topics if topic in self.additions}
            self.watched = replace(watched, topics=watched.topics | known)

    def is_current(self, topic: str) -> bool:
        """Whether the open watch has sent a topic's route, or the lack of one, and would send each change of it."""
        number, stream = self.additions.get(topic), self.stream
        return number is not None and stream is not None and stream.has_sent(topic, number)

    def resume_at(self, endpoint: Endpoint) -> WatchedUpTo | None:
        """Where a watch at a name server can resume, and with which topics; None if it has to begin anew."""
        if self.watched is None or self.watched.endpoint != endpoint:
            return None
        topics = dict(self.watched.topics.items() & self.additions.items())
        return replace(self.watched, topics=topics) if topics else None


class WatchBroken(Exception):
    """The stream does not keep the contract: it must be opened again, from the beginning."""


WATCH_LIMITS = ResponseLimits(bytes=1 << 30, rows=1_000_000, seconds=600.0)
"""The most that a watch may bring from one bookmark to the next, or until the first: twice the bytes of all routes that
a client keeps. A name server sends a bookmark at least every 30 s to a reader that keeps up."""


class WatchStream:
    """One watch of the kept topics. Its owner sends the requests and passes on the messages.

    At most one request is unanswered: topics that are added until then are gathered into the next one.
    """

    def __init__(self, kept: KeptTopics, endpoint: Endpoint, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Resumes where the last watch ended, if that was at this name server. Opens nothing.

        Args:
            kept: The topics; at least one.
            endpoint: The name server.
            monotonic: The clock, in seconds.
        """
        self._kept = kept
        self._endpoint = endpoint
        self._budget = ResponseBudget("the watch since its last bookmark", WATCH_LIMITS, monotonic)
        resume = self._watched = kept.resume_at(endpoint)
        """Where another watch can resume, with the topics whose routes have been received; None if nowhere."""
        self._asked = dict(resume.topics if resume else kept.additions)
        self._requests = 1
        self._answered = 0
        self._sent: set[str] = set()
        self._since_bookmark = set(self._asked) if resume else set[str]()
        self._origin = resume.origin if resume else None
        self._revision = resume.revision if resume else -1
        kept.stream = self

    @property
    def stands(self) -> bool:
        """Whether a first bookmark has come: the current routes have been received."""
        return self._answered > 0

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no bookmark yet that counts it."""
        return self._answered < self._requests

    def has_sent(self, topic: str, addition: int) -> bool:
        """Whether the name server has sent this topic, up to a bookmark. One that is not warm sends no unknown topics.

        Any thread may ask.
        """
        return topic in self._sent and self._asked.get(topic) == addition

    def opening(self) -> pb.WatchTopicRoutesRequest:
        """Returns the first request."""
        request = pb.WatchTopicRoutesRequest(topics=sorted(self._asked))
        if self._watched is not None:
            request.resume_after.epoch = self._watched.origin.epoch
            request.resume_after.revision = self._watched.revision
        return request

    def update(self) -> pb.WatchTopicRoutesRequest | None:
        """Returns the next request, or None if the kept topics are watched, or a request has no answer yet.

        A request either removes or adds: both together could be larger than a name server accepts.
        """
        if self.is_waiting:
            return None
        topics = self._kept.additions
        if removed := {topic for topic, _ in self._asked.items() - topics.items()}:
            request = pb.WatchTopicRoutesRequest(removed_topics=sorted(removed))
            self._asked = {topic: number for topic, number in self._asked.items() if topic not in removed}
            self._sent -= removed
            self._since_bookmark -= removed
        elif added := dict(topics.items() - self._asked.items()):
            request = pb.WatchTopicRoutesRequest(topics=sorted(added))
            self._asked = self._asked | added
        else:
            return None
        self._requests += 1
        return request

    def take(self, response: pb.WatchTopicRoutesResponse) -> list[Answer | ValueError]:
        """The answers of one message, in order, with a ValueError instead of each unreadable answer.

        Raises:
            WatchBroken: The stream changed its epoch, its revisions or its counts of requests decreased, or it has too
                many answers.
        """
        try:
            self._budget.take(response.ByteSize(), len(response.changes))
        except ResponseTooLarge as error:
            raise self._broken(str(error)) from error
        origin = self._check(response.header)
        revision = response.header.revision
        answers = [
            Answer.read(
                change.topic,
                change.route if change.HasField("route") else None,
                origin,
                revision,
                tuple(map(Removal.from_wire, change.removals)),
            )
            for change in response.changes
            if change.topic in self._asked
        ]
        self._since_bookmark.update(answer.topic for answer in answers if isinstance(answer, Answer))
        if response.bookmark:
            self._count(response.request_count)
            self._budget.begin_anew()
            counted_before = self._watched.topics if self._watched else {}
            counted = counted_before if self.is_waiting else self._asked
            self._watched = WatchedUpTo(self._endpoint, counted, origin, revision)
            self._sent |= self._since_bookmark
            self._since_bookmark.clear()
        self._kept.watched = self._watched
        return answers

    def _count(self, requests: int) -> None:
        least = max(1, self._answered)
        if not least <= requests <= self._requests:
            raise self._broken(f"a bookmark of the watch counts {requests} requests, not {least} to {self._requests}")
        self._answered = requests

    def _check(self, header: route_data_pb2.NamesrvHeader) -> Origin:
        origin = Origin(header.namesrv_name, header.epoch)
        if self._origin is not None and self._origin != origin:
            epochs = f"{self._origin.epoch} to {header.epoch} of {header.namesrv_name}"
            raise self._broken(f"the watch went from epoch {epochs}")
        if header.revision < self._revision:
            raise self._broken(f"the watch went back from revision {self._revision} to {header.revision}")
        self._origin, self._revision = origin, header.revision
        return origin

    def _broken(self, problem: str) -> WatchBroken:
        self._kept.watched = None
        return WatchBroken(problem)
