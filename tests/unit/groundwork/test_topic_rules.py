"""Names of clusters, brokers and topics: accepted at the limit, refused one past it."""

from __future__ import annotations

import pytest

from groundwork.topic_names import check_name, check_topic


@pytest.mark.parametrize("name", ["a", "x" * 127, "%RETRY%group", "|%-_", "host-1.example.com", "0"])
def test_good_names_are_given_back(name: str) -> None:
    assert check_name(name) == name
    assert check_topic(name) == name


@pytest.mark.parametrize("topic", ["%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250])
def test_retry_and_dead_letter_topics_may_be_longer(topic: str) -> None:
    assert check_topic(topic) == topic
    with pytest.raises(ValueError, match="has 256 characters, at most 255"):
        check_topic(topic + "x")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("x" * 128, "has 128 characters, at most 127"),
        ("a b", "'a b' has characters other than"),
        ("T\n", "has characters other than"),
        ("späße", "has characters other than"),
        ("a/b", "has characters other than"),
    ],
)
def test_bad_names_are_refused_with_the_rule(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_topic(name)


def test_a_name_that_is_too_long_is_not_repeated_whole() -> None:
    with pytest.raises(ValueError, match="characters") as caught:
        check_name("x" * 10_000)
    assert len(str(caught.value)) < 100
