"""A watch knows which topics are up to date, whatever topics come and go while messages are under way.

The name server is a queue: it answers requests in their order, and a bookmark counts those that it has taken.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.endpoints import Endpoint
from route_client.cache import Answer
from route_client.watch_stream import KeptTopics, ResumePoint, WatchedUpTo, WatchStream
from tests.properties import Machine, machine_test
from tests.support.routes.wire_routes import wire_route

ENDPOINT = Endpoint("127.0.0.1", 1)
TOPICS = st.sampled_from("TUVWX")


EVENTS = st.one_of(
    st.tuples(st.just("a_topic_comes"), TOPICS),
    st.tuples(st.just("a_topic_goes"), TOPICS, st.booleans()),
    st.tuples(st.just("the_client_asks"), st.none() | TOPICS),
    st.tuples(st.just("a_message_comes"), st.integers(0, 2), st.sets(TOPICS, max_size=1), st.booleans()),
    st.tuples(st.just("a_topic_goes_between_a_message_and_its_bookmark"), TOPICS),
    st.tuples(st.just("it_breaks_and_resumes")),
)
"""Drawn by one rule, as Hypothesis leaves rules out of examples, and few of these mean anything alone."""


class WatchBesideANameServer(Machine):
    outcomes = frozenset(
        {"added", "bookmark", "removed", "removed before its bookmark", "resumed", "message of a removed topic"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.topics = KeptTopics(max_topics=9)
        self.lives: Counter[str] = Counter()
        """How often each topic was added: each time the client begins without its route."""
        self.counted_lives: dict[str, int] = {}
        """Of the topics that the last bookmark without a later request counts."""
        for topic in "TUVW":
            self.a_topic_comes(topic)
        self.revision = 0
        self.begin(WatchStream(self.topics.additions))

    @initialize(is_warm=st.booleans())
    def the_name_server_is(self, is_warm: bool) -> None:
        """A cold one says nothing about unknown topics."""
        self.is_warm = is_warm

    def begin(self, stream: WatchStream) -> None:
        self.stream = self.topics.stream = stream
        self.requests = [stream.opening()]
        """Requests that the name server has not taken yet."""
        self.watched: set[str] = set()
        """What the name server watches."""
        self.untold: set[str] = set()
        """Of that, what it has not sent since it began."""
        self.taken = 0
        self.asked_lives = {topic: self.lives[topic] for topic in self.requests[0].topics}
        self.current: set[str] = set()
        """Topics whose route the client has, of those that it asks for."""
        self.at_bookmark: set[str] = set()
        """What the name server watched when it sent its last bookmark."""
        self.told_since: set[str] = set()
        """Topics with messages since the last bookmark."""

    @rule(events=st.lists(EVENTS, min_size=1, max_size=10))
    def some_events(self, events: list[tuple[Any, ...]]) -> None:
        for name, *arguments in events:
            getattr(self, name)(*arguments)
            self.what_is_up_to_date_is_what_the_name_server_has_told()
            self.a_resumed_watch_would_miss_nothing()

    def a_topic_comes(self, topic: str) -> None:
        self.lives[topic] += self.topics.add(topic)

    def a_topic_goes(self, topic: str, again: bool) -> None:
        self.topics.drop(topic)
        if again:
            self.a_topic_comes(topic)

    def the_client_asks(self, goes: str | None) -> None:
        """Often after a topic went."""
        if goes is not None:
            self.a_topic_goes(goes, again=False)
        request = self.stream.update(self.topics.additions)
        if request is None:
            assert self.stream.is_waiting or self.asked_lives == {topic: self.lives[topic] for topic in self.topics}
            return
        assert not (request.topics and request.removed_topics)
        self.requests.append(request)
        gone = set(request.removed_topics)
        self.asked_lives |= {topic: self.lives[topic] for topic in request.topics}
        for topic in gone:
            del self.asked_lives[topic]
        if gone & self.told_since - self.current:
            self.reaches("removed before its bookmark")
        self.reaches("removed" if gone else "added")
        self.current -= gone
        self.told_since -= gone

    def a_message_comes(self, requests: int, topics: set[str], bookmark: bool) -> None:
        """After the name server has taken some requests; before a bookmark it sends all that is missing."""
        for request in self.requests[:requests]:
            self.taken += 1
            self.watched = self.watched - set(request.removed_topics) | set(request.topics)
            self.untold -= set(request.removed_topics)
            if not request.HasField("resume_after"):
                self.untold |= set(request.topics)
        del self.requests[:requests]
        told = topics & self.watched
        if bookmark and self.is_warm:
            told |= self.untold
        if self.taken:
            self.take(told, bookmark=bookmark)

    def take(self, told: set[str], *, bookmark: bool) -> None:
        self.revision += 1
        message = pb.WatchTopicRoutesResponse(
            header=route_data_pb2.NamesrvHeader(namesrv_name="ns-a", epoch="1", revision=self.revision),
            changes=[pb.TopicRouteChange(topic=topic, route=wire_route()) for topic in sorted(told)],
            bookmark=bookmark,
            request_count=self.taken if bookmark else 0,
        )
        self.untold -= told
        answers = self.stream.take(message)
        asked = set(self.stream._asked)
        assert [answer.topic for answer in answers if isinstance(answer, Answer)] == sorted(told & asked)
        if told - asked:
            self.reaches("message of a removed topic")
        self.told_since |= told & asked
        if bookmark:
            self.current |= self.told_since
            self.told_since = set()
            self.at_bookmark = set(self.watched)
            if not self.stream.is_waiting:
                self.counted_lives = dict(self.asked_lives)
            self.topics.watched = WatchedUpTo(ENDPOINT, self.stream.counted, ResumePoint("1", self.revision))
            self.reaches("bookmark")

    def a_topic_goes_between_a_message_and_its_bookmark(self, topic: str) -> None:
        self.a_message_comes(2, {topic}, bookmark=False)
        self.the_client_asks(topic)
        self.a_message_comes(0, {topic}, bookmark=False)

    def it_breaks_and_resumes(self) -> None:
        resumed = self.topics.resume_at(ENDPOINT)
        if resumed is None or self.untold:
            return
        self.begin(WatchStream(resumed.topics, resumed.point))
        self.at_bookmark = set(resumed.topics)
        self.told_since = set(resumed.topics)  # it has what came before, once a bookmark says that nothing is missing
        self.reaches("resumed")

    @invariant()
    def what_is_up_to_date_is_what_the_name_server_has_told(self) -> None:
        kept = {
            topic for topic in self.current if self.asked_lives[topic] == self.lives[topic] and topic in self.topics
        }
        assert {topic for topic in "TUVWX" if self.topics.is_current(topic)} == kept

    @invariant()
    def a_resumed_watch_would_miss_nothing(self) -> None:
        """What it would resume with was watched at the bookmark, and the client has its routes."""
        resumed = self.topics.resume_at(ENDPOINT)
        for topic in {} if resumed is None else resumed.topics:
            assert topic in self.at_bookmark
            assert self.counted_lives[topic] == self.lives[topic]


TestWatchBesideANameServer = machine_test(WatchBesideANameServer, 100, steps=10)
