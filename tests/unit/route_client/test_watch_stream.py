"""WatchStream and the kept topics: the answers of a watch, what breaks it, where it resumes."""

from __future__ import annotations

from unittest import mock

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.response_limits import ResponseLimits
from namesrv_common.endpoints import Endpoint
from route_client import watch_stream
from route_client.cache import Answer
from route_client.errors import TooManyTopicsError
from route_client.settings import ClientSettings
from route_client.watch_stream import Additions, KeptTopics, ResumePoint, WatchBroken, WatchedUpTo, WatchStream
from tests.support.routes.wire_routes import wire_route
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


def change(topic: str = "T", told: route_data_pb2.TopicRouteData | None = None) -> pb.TopicRouteChange:
    return pb.TopicRouteChange(topic=topic, route=told)


def watching(*topics: str, resume: ResumePoint | None = None) -> WatchStream:
    """A watch whose topics have the numbers 1, 2 and so on."""
    return WatchStream(numbered(*topics), resume)


def numbered(*topics: str) -> Additions:
    return {topic: number for number, topic in enumerate(topics, 1)}


def test_a_topic_removed_before_its_bookmark_is_not_sent_when_added_again() -> None:
    stream = watching("T", "U")
    stream.take(message(7, change("U")))
    stream.take(message(8, change("T"), bookmark=False))
    assert list(stream.update({"U": 2}).removed_topics) == ["T"]  # type: ignore[union-attr]
    stream.take(message(8, counts=2))
    stream.update({"T": 3, "U": 2})
    assert not stream.has_sent("T", 3)
    stream.take(message(8, change("T"), counts=3))
    assert stream.has_sent("T", 3)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (message(6), "back from revision 7 to 6"),
        (message(8, epoch="0002"), "from epoch 0001 to 0002"),
        (message(8, name="ns-b"), "of ns-b"),
    ],
)
def test_a_watch_whose_revisions_go_back_or_whose_origin_changes_is_broken_and_not_resumed(
    second: pb.WatchTopicRoutesResponse, problem: str
) -> None:
    stream = watching("T")
    stream.take(message(7))
    with pytest.raises(WatchBroken, match=problem):
        stream.take(second)
    assert stream.resume_point is None


@pytest.mark.parametrize("first", [message(8, epoch="0002"), message(6)])
def test_a_resumed_watch_that_begins_elsewhere_is_broken(first: pb.WatchTopicRoutesResponse) -> None:
    with pytest.raises(WatchBroken):
        watching("T", resume=ResumePoint("0001", 7)).take(first)


@pytest.mark.parametrize("number", [-1, 65_536])
def test_a_route_that_no_broker_can_have_is_told_from_the_others(number: int) -> None:
    impossible = wire_route()
    impossible.queue_datas[0].write_queue_nums = number
    stream = watching("T", "U")
    refused, taken = stream.take(message(7, change("T", impossible), change("U", wire_route())))
    assert isinstance(refused, ValueError)
    assert f"'T': write_queue_nums of broker 'broker-a' is {number}" in str(refused)
    assert isinstance(taken, Answer)


def test_a_watch_that_brings_too_much_without_a_bookmark_is_broken() -> None:
    clock = VirtualClock()
    with mock.patch.object(watch_stream, "WATCH_LIMITS", ResponseLimits(bytes=1 << 20, rows=2, seconds=60.0)):
        stream = WatchStream(numbered("T"), monotonic=clock.monotonic)
    for revision in range(3):
        stream.take(message(revision, change(), change()))
        clock.advance(100.0)
    stream.take(message(3, change(), bookmark=False))
    clock.advance(61.0)
    with pytest.raises(WatchBroken, match=r"^the watch since its last bookmark has 61 seconds so far, over the limit"):
        stream.take(message(4, change(), bookmark=False))
    assert stream.resume_point is None


@pytest.mark.parametrize("counts", [0, 1, 3])
def test_a_bookmark_that_counts_requests_that_there_were_not_breaks_the_watch(counts: int) -> None:
    stream = watching("T")
    stream.take(message(7))
    stream.update(numbered("T", "U"))
    stream.take(message(8, counts=2))
    with pytest.raises(WatchBroken, match=f"a bookmark of the watch counts {counts} requests, not 2 to 2"):
        stream.take(message(9, counts=counts))
    assert stream.resume_point is None


A, B = (Endpoint(name, 9876) for name in "ab")
POINT = ResumePoint("0001", 7)


def test_there_is_a_most_of_topics() -> None:
    topics = KeptTopics(2)
    topics.add("a")
    topics.add("b")
    topics.add("a")
    with pytest.raises(TooManyTopicsError, match=r"2 topics.*'c'"):
        topics.add("c")
    topics.drop("a")
    assert topics.add("c")


def watched(*topics: str) -> KeptTopics:
    """Topics that were watched at A."""
    kept = KeptTopics(10)
    for topic in topics:
        kept.add(topic)
    kept.watched = WatchedUpTo(A, dict(kept.additions), POINT)
    return kept


def test_a_watch_resumes_only_at_the_same_name_server() -> None:
    kept = KeptTopics(10)
    assert kept.resume_at(A) is None
    kept = watched("a", "b")
    assert kept.resume_at(A) == kept.watched
    assert kept.resume_at(B) is None


def test_a_first_watch_resumes_after_the_first_lookup_there() -> None:
    kept = KeptTopics(10)
    for topic in "abc":
        kept.add(topic)
    kept.looked_up(A, POINT, ["a", "forgotten"])
    kept.looked_up(A, ResumePoint("0001", 8), ["b"])
    kept.looked_up(A, ResumePoint("0001", 6), ["c"])
    kept.looked_up(A, ResumePoint("0002", 9), ["c"])
    kept.looked_up(B, POINT, ["c"])
    assert kept.resume_at(A) == WatchedUpTo(A, {"a": 1, "b": 2}, POINT)
    kept.stream = WatchStream(kept.additions)
    kept.looked_up(A, POINT, ["c"])
    assert kept.resume_at(A) == WatchedUpTo(A, {"a": 1, "b": 2}, POINT), "an open watch asks for it"


@pytest.mark.parametrize("field", ["poll_seconds", "timeout_seconds", "max_topics"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_out_of_their_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        ClientSettings(**{field: value})  # type: ignore[arg-type]


def test_only_the_hold_may_be_zero() -> None:
    assert ClientSettings(hold_seconds=0).hold_seconds == 0
    with pytest.raises(ValueError, match="hold_seconds is -1"):
        ClientSettings(hold_seconds=-1)


def test_topics_are_at_most_those_of_one_watch() -> None:
    with pytest.raises(ValueError, match=r"^max_topics is 10001, over 10000, the most topics of a watch$"):
        ClientSettings(max_topics=10_001)
