"""The promises of WatchTopicRoutes, checked on what clients recorded: seven validators, each for one promise.

A client is a list of streams in the order in which it opened them; each stream has what was asked for and every
message that came. Lookups that were made in the meantime, on the same name server, say what the routes really were.

An open watch may gain topics, whose current routes may have the revision of the last bookmark. It may lose topics,
which a client forgets at the bookmark that counts the removal.

    filtered      only topics that were asked for are told of
    ordered       revisions never go back in a stream, and the epoch stays
    unique        no topic is told of twice at one revision in a stream
    atomic        whatever changed in one revision has arrived with the bookmark that covers it: clients that hold the
                  same topics at a bookmark of the same revision hold the same routes
    bookmarkable  what comes after a bookmark is of a later revision
    resumable     a stream that resumes tells only what changed after its point, and the client ends up with what it
                  would have had without the break
    reliable      nothing is lost: at a bookmark a client holds what a lookup of that revision gives, and between two
                  bookmarks no lookup gives anything else for a topic that was not told of
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

Route = route_data_pb2.TopicRouteData | None
"""A route, or None if the topic is not there."""

Routes = Mapping[str, Route]


class Lookup(NamedTuple):
    """What a lookup gave."""

    epoch: str
    revision: int
    topic: str
    route: Route


@dataclass
class WatchedStream:
    """What one stream was asked for, and what came."""

    request: pb.WatchTopicRoutesRequest
    messages: list[pb.WatchTopicRoutesResponse] = field(default_factory=list)
    later: list[pb.WatchTopicRoutesRequest] = field(default_factory=list)
    """The requests after the first, which add and remove topics."""

    @property
    def resumes_after(self) -> tuple[str, int] | None:
        """Epoch and revision that it continues after; None if it starts anew."""
        if not self.request.HasField("resume_after"):
            return None
        return self.request.resume_after.epoch, self.request.resume_after.revision

    def asks_for(self, topic: str, request_count: int = 1) -> bool:
        """Whether a topic is asked for once so many requests are in force."""
        topics, prefixes = set(self.request.topics), set(self.request.topic_prefixes)
        for later in self.later[: request_count - 1]:
            topics = topics - set(later.removed_topics) | set(later.topics)
            prefixes = prefixes - set(later.removed_topic_prefixes) | set(later.topic_prefixes)
        return topic in topics or topic.startswith(tuple(prefixes))

    def adds(self, topic: str, counts: range) -> bool:
        """Whether a request adds a topic that comes into force between two bookmarks."""
        later = self.later[counts.start - 1 : counts.stop - 1]
        return any(topic in one.topics or topic.startswith(tuple(one.topic_prefixes)) for one in later)

    def with_counts(self) -> Iterator[tuple[pb.WatchTopicRoutesResponse, range]]:
        """Each message, with the counts of requests in force at the bookmark before it, and at the next one."""
        counts = [max(message.request_count, 1) for message in self.messages if message.bookmark]
        counts.append(1 + len(self.later))
        before = 1
        for message in self.messages:
            yield message, range(before, counts[0])
            if message.bookmark:
                before = counts.pop(0)


Client = Sequence[WatchedStream]


class Held(NamedTuple):
    """What a client holds at a bookmark."""

    epoch: str
    revision: int
    routes: Routes
    told: frozenset[str]
    """Topics that it was notified of since the bookmark before."""
    starts: bool
    """Whether it is the first bookmark of a client, or of one that started anew."""


def held_at_bookmarks(client: Client) -> Iterator[Held]:
    """What a client holds at each bookmark of its streams. What came after the last one of a stream does not count."""
    routes: dict[str, Route] = {}
    at_bookmark: dict[str, Route] = {}
    for stream in client:
        starts = stream.resumes_after is None
        routes = {} if starts else dict(at_bookmark)
        told: set[str] = set()
        for message in stream.messages:
            for change in message.changes:
                routes[change.topic] = change.route if change.HasField("route") else None
                told.add(change.topic)
            if message.bookmark:
                count = max(message.request_count, 1)
                routes = {topic: route for topic, route in routes.items() if stream.asks_for(topic, count)}
                at_bookmark = dict(routes)
                yield Held(message.header.epoch, message.header.revision, at_bookmark, frozenset(told), starts)
                told, starts = set(), False


def last_bookmark(client: Client) -> tuple[str, int] | None:
    """Where a client that lost its stream continues, or None if it starts anew."""
    last = None
    for held in held_at_bookmarks(client):
        last = held.epoch, held.revision
    return last


def check_stream(stream: WatchedStream) -> None:
    """All promises that one stream can break.

    That a topic is absent may be sent again, once, at the same revision: the name server has become warm. That a client
    ends up with what it would have had without a break is what ``check_reliable`` sees.
    """
    point, bookmark = stream.resumes_after, -1
    before: route_data_pb2.NamesrvHeader | None = None
    seen: set[tuple[int, str]] = set()
    absent_again: set[str] = set()
    for message, counts in stream.with_counts():
        epoch, revision = message.header.epoch, message.header.revision
        if point is not None:
            assert epoch == point[0], "resumable: resumed in another epoch"
            assert revision >= point[1], "resumable: resumed before its point"
        if before is not None:
            assert epoch == before.epoch, "ordered: the epoch changed within a stream"
            assert revision >= before.revision, f"ordered: {revision} came after {before.revision}"
        before = message.header
        for change in message.changes:
            topic, is_absence = change.topic, not change.HasField("route") and not change.removals
            is_asked_for = any(stream.asks_for(topic, count) for count in range(counts.start, counts.stop + 1))
            assert is_asked_for, f"filtered: {topic} was not asked for (revision {revision})"
            is_again = (revision, topic) in seen
            seen.add((revision, topic))
            if stream.adds(topic, counts):
                continue
            if is_again:
                assert is_absence, f"unique: {topic} came twice at revision {revision}"
                assert topic not in absent_again, f"unique: {topic} was absent again and again"
                absent_again.add(topic)
            assert is_absence or revision > bookmark, (
                f"bookmarkable: {topic} of revision {revision} came after the bookmark {bookmark}"
            )
            if point is not None and change.HasField("route"):
                assert revision > point[1], f"resumable: {topic} came again"
        if message.bookmark:
            bookmark = revision


def check_atomic(clients: Iterable[Client]) -> None:
    """Clients that hold a topic at a bookmark of the same revision hold the same route of it."""
    seen: dict[tuple[str, int, str, str], Route] = {}
    for client in clients:
        zone = client[0].request.zone_name if client else ""
        for held in held_at_bookmarks(client):
            for topic, route in held.routes.items():
                other = seen.setdefault((held.epoch, held.revision, zone, topic), route)
                assert other == route, f"atomic: two routes of {topic} at revision {held.revision}: {other} and {route}"


def check_reliable(client: Client, lookups: Sequence[Lookup]) -> None:
    """At a bookmark a client holds what was looked up then, and nothing happened unseen between two bookmarks.

    Lookups must be of the zone that the client watches for.
    """
    by_epoch: defaultdict[str, list[Lookup]] = defaultdict(list)
    for lookup in sorted(lookups, key=attrgetter("revision")):
        by_epoch[lookup.epoch].append(lookup)
    before: Held | None = None
    for held in held_at_bookmarks(client):
        if held.starts:
            before = None
        of_epoch = by_epoch[held.epoch]
        for lookup in _between(of_epoch, held.revision - 1, held.revision):
            if lookup.topic in held.routes:
                _same(lookup, held.routes[lookup.topic])
        if before is not None:
            for lookup in _between(of_epoch, before.revision, held.revision - 1):
                if lookup.topic in before.routes.keys() & held.routes.keys() and lookup.topic not in held.told:
                    _same(lookup, before.routes[lookup.topic])
        before = held


def _between(lookups: Sequence[Lookup], after: int, until: int) -> Sequence[Lookup]:
    """Those of a revision later than ``after``, up to ``until``; they come in the order of their revisions."""
    revision = attrgetter("revision")
    return lookups[bisect_right(lookups, after, key=revision) : bisect_right(lookups, until, key=revision)]


def _same(lookup: Lookup, route: Route) -> None:
    assert lookup.route == route, (
        f"reliable: at revision {lookup.revision} {lookup.topic} was {lookup.route}, the watch held {route}"
    )


def check_promises(clients: Sequence[Client], lookups: Sequence[Lookup]) -> None:
    """All seven. The clients must watch without a zone, or all with the one that the lookups were made for."""
    for client in clients:
        for stream in client:
            check_stream(stream)
        check_reliable(client, lookups)
    check_atomic(clients)
