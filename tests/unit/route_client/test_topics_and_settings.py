"""The topics that are kept, in parts; settings that are refused."""

from __future__ import annotations

import pytest

from groundwork.endpoints import Endpoint
from route_client.errors import TooManyTopicsError
from route_client.settings import ClientSettings
from route_client.watch import TOPICS_PER_STREAM, KeptTopics, ResumePoint, WatchedUpTo

A, B = (Endpoint(name, 9876) for name in "ab")


def kept(max_topics: int = 10_000) -> KeptTopics:
    return KeptTopics(max_topics, lambda: 5.0)


def test_topics_fill_one_part_after_the_other_and_dropped_ones_make_room() -> None:
    topics = kept()
    for number in range(TOPICS_PER_STREAM + 1):
        assert topics.add(f"topic-{number}")
    assert not topics.add("topic-0")
    assert [len(part.topics) for part in topics.parts] == [TOPICS_PER_STREAM, 1]
    topics.drop("topic-0")
    topics.drop("never-there")
    topics.add("another")
    assert [len(part.topics) for part in topics.parts] == [TOPICS_PER_STREAM, 1]
    assert "topic-0" not in topics
    assert len(topics) == len(list(topics)) == TOPICS_PER_STREAM + 1


def test_there_is_a_most_of_topics() -> None:
    topics = kept(2)
    topics.add("a")
    topics.add("b")
    topics.add("a")
    with pytest.raises(TooManyTopicsError, match=r"2 topics.*'c'"):
        topics.add("c")
    topics.drop("a")
    assert topics.add("c")


def test_a_watch_resumes_only_at_the_same_name_server_with_the_same_topics() -> None:
    topics = kept()
    topics.add("a")
    (part,) = topics.parts
    point = ResumePoint("0001", 7)
    assert part.resume_at(A) is None
    part.watched = WatchedUpTo(A, frozenset({"a"}), point)
    assert part.resume_at(A) == point
    assert part.resume_at(B) is None
    topics.add("b")
    assert part.resume_at(A) is None


@pytest.mark.parametrize("field", ["poll_seconds", "timeout_seconds", "max_topics"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_out_of_their_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        ClientSettings(**{field: value})  # type: ignore[arg-type]


def test_only_the_hold_may_be_zero() -> None:
    assert ClientSettings(hold_seconds=0).hold_seconds == 0
    with pytest.raises(ValueError, match="hold_seconds is -1"):
        ClientSettings(hold_seconds=-1)
