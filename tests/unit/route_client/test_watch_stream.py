"""WatchStream and the kept topics: the answers of a watch, what breaks it, where it resumes."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.channels import ResponseLimits
from namesrv_common.endpoints import Endpoint
from route_client import watch_stream
from route_client.cache import Answer, Origin
from route_client.settings import ClientSettings
from route_client.watch_stream import KeptTopics, WatchBroken, WatchedUpTo, WatchStream
from tests.properties import Machine, machine_test
from tests.support.routes.wire_routes import NS_A, wire_route
from tests.support.virtual_clock import VirtualClock


def message(
    revision: int,
    *changes: pb.TopicRouteChange,
    epoch: str = "0001",
    name: str = "ns-a",
    bookmark: bool = True,
    counts: int = 1,
) -> pb.WatchTopicRoutesResponse:
    header = route_data_pb2.NamesrvHeader(namesrv_name=name, epoch=epoch, revision=revision)
    request_count = counts if bookmark else 0
    return pb.WatchTopicRoutesResponse(header=header, changes=changes, bookmark=bookmark, request_count=request_count)


NO_ROUTE = pb.TopicRouteChange(topic="T")
A, B = (Endpoint(name, 9876) for name in "ab")


def keeping(*topics: str) -> KeptTopics:
    """Topics with the numbers 1, 2 and so on."""
    kept = KeptTopics(max_topics=9)
    for topic in topics:
        kept.add(topic)
    return kept


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(
    ("next_message", "problem"),
    [
        (message(6), "back from revision 7 to 6"),
        (message(8, epoch="0002"), "from epoch 0001 to 0002"),
        (message(8, name="ns-b"), "of ns-b"),
    ],
)
def test_a_watch_whose_revisions_go_back_or_whose_origin_changes_is_broken_and_not_resumed(
    next_message: pb.WatchTopicRoutesResponse, problem: str, is_resumed: bool
) -> None:
    kept = keeping("T")
    if is_resumed:
        kept.looked_up(A, NS_A, 7, ["T"])
    stream = WatchStream(kept, A)
    if not is_resumed:
        stream.take(message(7))
    with pytest.raises(WatchBroken, match=problem):
        stream.take(next_message)
    assert kept.watched is None


def test_a_watch_that_brings_too_much_without_a_bookmark_is_broken() -> None:
    clock, kept = VirtualClock(), keeping("T")
    with mock.patch.object(watch_stream, "WATCH_LIMITS", ResponseLimits(bytes=1 << 20, rows=2, seconds=60.0)):
        stream = WatchStream(kept, A, clock.monotonic)
    for revision in range(3):
        stream.take(message(revision, NO_ROUTE, NO_ROUTE))
        clock.advance(100.0)
    stream.take(message(3, NO_ROUTE, bookmark=False))
    clock.advance(61.0)
    with pytest.raises(WatchBroken, match=r"^the watch since its last bookmark has 61 seconds so far, over the limit"):
        stream.take(message(4, NO_ROUTE, bookmark=False))
    assert kept.watched is None


@pytest.mark.parametrize("counts", [0, 1, 3])
def test_a_bookmark_that_counts_requests_that_there_were_not_breaks_the_watch(counts: int) -> None:
    kept = keeping("T")
    stream = WatchStream(kept, A)
    stream.take(message(7))
    kept.add("U")
    stream.update()
    stream.take(message(8, counts=2))
    with pytest.raises(WatchBroken, match=f"a bookmark of the watch counts {counts} requests, not 2 to 2"):
        stream.take(message(9, counts=counts))
    assert kept.watched is None


def test_a_first_watch_resumes_after_the_first_lookup_there() -> None:
    kept = keeping(*"abc")
    kept.looked_up(A, NS_A, 7, ["a", "forgotten"])
    kept.looked_up(A, NS_A, 8, ["b"])
    kept.looked_up(A, NS_A, 6, ["c"])
    kept.looked_up(A, Origin("ns-a", "0002"), 9, ["c"])
    kept.looked_up(B, NS_A, 7, ["c"])
    assert kept.resume_at(A) == WatchedUpTo(A, {"a": 1, "b": 2}, NS_A, 7)
    WatchStream(kept, A)
    kept.looked_up(A, NS_A, 7, ["c"])
    assert kept.resume_at(A) == WatchedUpTo(A, {"a": 1, "b": 2}, NS_A, 7), "an open watch asks for it"
    WatchStream(kept, B).take(message(1, bookmark=False))
    assert kept.resume_at(A) is None, "from then on, the client has routes of another name server"


WRONG = product(["poll_seconds", "timeout_seconds", "max_topics"], [0, -1, float("nan")])


@pytest.mark.parametrize(("field", "value"), [*WRONG, ("hold_seconds", -0.1), ("max_topics", 10_001)])
def test_settings_out_of_their_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}, "):
        ClientSettings(**{field: value})  # type: ignore[arg-type]
    assert ClientSettings(hold_seconds=0, max_topics=10_000).hold_seconds == 0


TOPICS = st.sampled_from("TUVWX")


EVENTS = st.one_of(
    st.tuples(st.just("a_topic_comes"), TOPICS),
    st.tuples(st.just("a_topic_goes"), TOPICS, st.booleans()),
    st.tuples(st.just("the_client_asks"), st.none() | TOPICS),
    st.tuples(st.just("a_message_comes"), st.integers(0, 2), st.sets(TOPICS, max_size=1), st.booleans()),
    st.tuples(st.just("a_topic_goes_before_its_bookmark_and_comes_again"), TOPICS),
    st.tuples(st.just("it_breaks_and_resumes")),
)
"""Drawn by one rule, as Hypothesis leaves rules out of examples, and few of these mean anything alone."""


class WatchBesideANameServer(Machine):
    """A watch knows which topics are current, whatever topics come and go while messages are under way.

    The name server is a queue: it answers requests in their order, and a bookmark counts those that it has taken.
    """

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
        self.begin()

    @initialize(is_warm=st.booleans())
    def the_name_server_is(self, is_warm: bool) -> None:
        """A cold one says nothing about unknown topics."""
        self.is_warm = is_warm

    def begin(self) -> None:
        self.stream = WatchStream(self.topics, A)
        self.requests = [self.stream.opening()]
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
        self.topics.additions.pop(topic, None)
        if again:
            self.a_topic_comes(topic)

    def the_client_asks(self, goes: str | None) -> None:
        """Often after a topic went."""
        if goes is not None:
            self.a_topic_goes(goes, again=False)
        request = self.stream.update()
        if request is None:
            assert self.stream.is_waiting or self.asked_lives == {
                name: self.lives[name] for name in self.topics.additions
            }
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
        changes = [pb.TopicRouteChange(topic=topic, route=wire_route()) for topic in sorted(told)]
        self.untold -= told
        answers = self.stream.take(message(self.revision, *changes, bookmark=bookmark, counts=self.taken))
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
            self.reaches("bookmark")

    def a_topic_goes_before_its_bookmark_and_comes_again(self, topic: str) -> None:
        self.a_message_comes(2, set(), bookmark=True)  # now the client may ask
        self.a_message_comes(0, {topic}, bookmark=False)
        self.the_client_asks(topic)
        self.a_message_comes(0, {topic}, bookmark=False)
        self.a_message_comes(1, set(), bookmark=True)
        self.a_topic_comes(topic)
        self.the_client_asks(None)
        self.a_message_comes(1, set(), bookmark=True)

    def it_breaks_and_resumes(self) -> None:
        resumed = self.topics.resume_at(A)
        if resumed is None or self.untold:
            return
        self.begin()
        self.at_bookmark = set(resumed.topics)
        self.told_since = set(resumed.topics)  # it has what came before, once a bookmark says that nothing is missing
        self.reaches("resumed")

    @invariant()
    def what_is_up_to_date_is_what_the_name_server_has_told(self) -> None:
        asked_now = {topic for topic in self.current if self.asked_lives[topic] == self.lives[topic]}
        kept = asked_now & self.topics.additions.keys()
        assert {topic for topic in "TUVWX" if self.topics.is_current(topic)} == kept

    @invariant()
    def a_resumed_watch_would_miss_nothing(self) -> None:
        """What it would resume with was watched at the bookmark, and the client has its routes."""
        resumed = self.topics.resume_at(A)
        for topic in {} if resumed is None else resumed.topics:
            assert topic in self.at_bookmark
            assert self.counted_lives[topic] == self.lives[topic]


TestWatchBesideANameServer = machine_test(WatchBesideANameServer, 100, steps=10)
