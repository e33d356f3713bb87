"""Labels of brokers: the rules of Kubernetes, at each limit and one beyond it."""

from __future__ import annotations

import pytest

from namesrv_common.labels import MAX_LABELS, label_problem, parse_labels, shown_labels

LONGEST_PREFIX = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rack", "r1"),
        ("rack", ""),
        ("topology.kubernetes.io/zone", "eu-1_A.b"),
        ("k" * 63, "v" * 63),
        (f"{LONGEST_PREFIX}/0", "0"),
    ],
)
def test_labels_that_kubernetes_takes_are_taken(key: str, value: str) -> None:
    assert label_problem({key: value}) is None
    assert shown_labels(parse_labels([f"{key}={value}"])) == [f"{key}={value}"]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("", "v", "name '' must have ASCII letters"),
        ("/rack", "v", "prefix '' must be a DNS subdomain"),
        ("a/", "v", "name '' must have ASCII letters"),
        ("a/b/c", "v", "prefix 'a/b' must be a DNS subdomain"),
        ("Example.com/rack", "v", "prefix 'Example.com' must be a DNS subdomain"),
        ("-rack", "v", "a letter or digit at both ends"),
        ("rack\n", "v", r"name 'rack\\n' must have ASCII letters"),
        ("räck", "v", "name 'räck' must have ASCII letters"),
        ("k" * 64, "v", "name has 64 characters, at most 63"),
        (f"{LONGEST_PREFIX}d/k", "v", "prefix has 254 characters, at most 253"),
        ("rack", "v" * 64, "has the key 'rack', whose value has 64 characters, at most 63"),
        ("rack", "r 1", "has the key 'rack', whose value 'r 1' must have ASCII letters"),
    ],
)
def test_other_labels_are_refused_with_key_part_and_rule(key: str, value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_labels([f"{key}={value}"])


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["rack"], "'rack' has no '='; write key=value"),
        (["rack=r1", "rack=r2"], "has the key 'rack' twice"),
        ([f"k{number}=" for number in range(MAX_LABELS + 1)], "has 17 labels, at most 16"),
    ],
)
def test_texts_that_are_no_labels_are_refused(texts: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_labels(texts)


def test_a_key_of_any_length_is_not_repeated_whole() -> None:
    problem = label_problem({"k" * 100_000: ""})
    assert problem is not None
    assert len(problem) < 200
