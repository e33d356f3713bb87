"""Names of clusters, brokers and topics: accepted at the limit, refused one past it."""

from __future__ import annotations

import pytest

from namesrv_common.topic_names import check_name, check_topic

NAMES = [
    "a",
    "x" * 255,
    "%RETRY%group+topic",
    "|%-_",
    "host-1.example.com",
    "0",
    "订单",
    "a b",
    "orders/eu",
    "x@y",
    "a:b",
]


@pytest.mark.parametrize("name", NAMES)
def test_good_names_are_given_back(name: str) -> None:
    assert check_name(name) == name
    assert check_topic(name) == name


def test_the_longest_retry_topic_of_pop_consumption_is_taken() -> None:
    longest = "%RETRY%" + "g" * 255 + "+" + "t" * 127
    assert check_topic(longest) == longest


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("x" * 401, "has 401 bytes, at most 400"),
        ("单" * 134, "has 402 bytes, at most 400"),
        ("T\n", r"'T\\n' has characters that are not printable"),
        ("\u202eT", "has characters that are not printable"),
        ("\ud800", "has characters that are not printable"),
    ],
)
def test_bad_names_are_refused_with_the_rule(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_topic(name)


def test_a_name_that_is_too_long_is_not_repeated_whole() -> None:
    with pytest.raises(ValueError, match="bytes") as caught:
        check_name("x" * 10_000)
    assert len(str(caught.value)) < 100
