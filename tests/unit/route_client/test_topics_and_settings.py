"""The topics that are kept, and with which of them a watch resumes; settings that are refused."""

from __future__ import annotations

import pytest

from namesrv_common.endpoints import Endpoint
from route_client.errors import TooManyTopicsError
from route_client.settings import ClientSettings
from route_client.watch_stream import KeptTopics, ResumePoint, WatchedUpTo

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
