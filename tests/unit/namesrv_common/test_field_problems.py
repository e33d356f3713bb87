"""The error of a request names all of its fields that break their rules."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from namesrv_common.errors import (
    MAX_VIOLATIONS,
    CommonReason,
    FieldProblems,
    FieldViolation,
    Refused,
    invalid_field,
    limit_exceeded,
)
from tests.support.refusals import refuses


def check(problems: FieldProblems, fields: Iterable[str]) -> None:
    for field in fields:
        with problems:
            raise invalid_field(field, "is bad")
    problems.raise_any()


def test_a_request_without_a_problem_passes() -> None:
    check(FieldProblems(), [])


def test_all_problems_are_listed_and_the_text_names_the_first() -> None:
    with refuses(CommonReason.INVALID_FIELD, match=r"^a: is bad \(and 2 more\)$") as caught:
        check(FieldProblems(), ["a", "b", "c"])
    assert caught.value.violations == tuple(FieldViolation(field, "is bad") for field in "abc")
    assert caught.value.metadata == {"field": "a"}


def test_problems_of_a_part_are_among_those_of_the_whole() -> None:
    problems = FieldProblems()
    with problems:
        check(FieldProblems(), ["part.a", "part.b"])
    with refuses(CommonReason.INVALID_FIELD) as caught:
        check(problems, ["c"])
    assert [violation.field for violation in caught.value.violations] == ["part.a", "part.b", "c"]


def test_a_request_of_very_many_problems_is_refused_when_a_hundred_are_found() -> None:
    checked: list[str] = []

    def fields() -> Iterable[str]:
        for number in range(1_000):
            checked.append(f"f{number}")
            yield f"f{number}"

    with refuses(CommonReason.INVALID_FIELD) as caught:
        check(FieldProblems(), fields())
    assert len(caught.value.violations) == len(checked) == MAX_VIOLATIONS


@pytest.mark.parametrize("error", [limit_exceeded("things", 2, 1), ValueError("a defect")])
def test_another_error_is_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, FieldProblems():
        raise error
    assert caught.value is error


def test_an_error_that_is_handed_over_is_taken_like_one_that_is_raised() -> None:
    problems = FieldProblems()
    problems.add(invalid_field("a", "is bad"))
    with refuses(CommonReason.INVALID_FIELD):
        problems.raise_any()
    with pytest.raises(Refused, match="things"):
        problems.add(limit_exceeded("things", 2, 1))
