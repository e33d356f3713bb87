"""The topics that the client keeps, in parts that are watched by one stream each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from groundwork.endpoints import Endpoint
from route_client.errors import TooManyTopicsError
from route_client.source.watch_stream import ResumePoint

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
