"""The messages of one WatchTopicRoutes stream, checked. Pure: messages in, answers out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from route_client.routes.cache import Answer, Origin
from route_client.routes.route import from_wire
from route_client.routes.safety import Removal


class WatchBroken(Exception):
    """The stream does not keep the contract: it must be opened again, from the beginning."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Up to where everything has been received."""

    epoch: str
    revision: int


class WatchStream:
    """One watch of some topics."""

    def __init__(self, topics: Collection[str], resume: ResumePoint | None = None) -> None:
        """Takes the topics, and where an earlier watch of the same topics at this name server ended."""
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
            WatchBroken: The stream changed its epoch, or its revisions went back.
        """
        origin = self._check(response.header)
        revision = response.header.revision
        answers = [_answer(change, origin, revision) for change in response.changes if change.topic in self._topics]
        self.told.update(answer.topic for answer in answers if isinstance(answer, Answer))
        if response.bookmark:
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
    return Answer(change.topic, route, origin, revision, tuple(map(Removal.from_wire, change.removals)))
