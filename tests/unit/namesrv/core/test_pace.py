"""Yield points of long computations and steps of a sort: where they come, and what they leave as it is."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core import pace
from namesrv.core.pace import paced, run_steps, sorted_in_slices
from tests.support.yield_points import yield_points_of


@pytest.mark.parametrize(("count", "yield_points"), [(0, 0), (1, 0), (3, 0), (4, 1), (6, 1), (7, 2)])
def test_a_loop_has_a_yield_point_between_every_so_many_items(count: int, yield_points: int) -> None:
    items: list[int] = []
    assert yield_points_of(lambda: items.extend(paced(range(count), 3))) == yield_points
    assert items == list(range(count))


@pytest.mark.parametrize("few", [1, 2, 3, 10])
def test_a_loop_is_given_each_item_when_it_asks_and_none_before(few: int) -> None:
    given: list[int] = []

    def items() -> Iterator[int]:
        for number in range(7):
            given.append(number)
            yield number

    for count, number in enumerate(paced(items(), few), 1):
        assert (number, len(given)) == (count - 1, count)


@given(st.lists(st.text(max_size=5), max_size=2_000))
def test_sorting_in_steps_gives_what_sorting_gives(names: list[str]) -> None:
    assert run_steps(sorted_in_slices(names)) == sorted(names)


def test_no_step_compares_many_more_names_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Name(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    monkeypatch.setattr(pace, "SORT_SLICE", 500)
    names = [*map(Name, random.Random(1).sample(range(10**9), 50_000))]
    of_steps, before = [], 0
    for _ in sorted_in_slices(names):
        of_steps.append(compared - before)
        before = compared
    assert max(*of_steps, compared - before) < 8_000, (
        "a merged name is compared with log2(100) others at most, and more"
    )
