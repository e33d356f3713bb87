"""Sorting in steps gives what sorting gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core import slices
from namesrv.core.slices import DROP_SLICE, SORT_SLICE, Leftovers, Sliced, emptied, sorted_in_slices, with_breaths


@given(st.lists(st.text(max_size=5), max_size=2_000))
def test_the_result_is_sorted(names: list[str]) -> None:
    assert with_breaths(sorted_in_slices(names.copy())) == sorted(names)


def test_it_gives_way_while_it_fills_buckets_and_while_it_sorts_them() -> None:
    names = [f"topic-{number * 7919 % 50_000:05}" for number in range(50_000)]
    steps = sorted_in_slices(names)
    given_way = sum(1 for _ in steps)
    assert given_way >= 2 * (50_000 // SORT_SLICE) - 2


def test_no_step_compares_many_more_names_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Name(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    for sized, value in (("SORT_SLICE", 500), ("SORT_SAMPLES", 512), ("SAMPLES_OF_A_BUCKET", 4)):
        monkeypatch.setattr(slices, sized, value)
    names = [*map(Name, random.Random(1).sample(range(10**9), 50_000))]
    of_steps, before = [], 0
    for _ in sorted_in_slices(names):
        of_steps.append(compared - before)
        before = compared
    assert max(*of_steps, compared - before) < 13_000, "a bucket has three times as many names as the mean"


def test_a_dictionary_is_emptied_a_slice_at_a_time() -> None:
    table = dict.fromkeys(range(2 * DROP_SLICE + 1))
    left = [len(table) for _ in emptied(table)]
    assert left == [DROP_SLICE + 1, 1, 0]


def test_what_was_left_behind_is_cleared_up_by_whoever_comes_first_and_by_others_from_there_on() -> None:
    done: list[str] = []

    def steps(name: str) -> Sliced[None]:
        for number in range(3):
            done.append(f"{name}{number}")
            yield

    leftovers = Leftovers()
    woken: list[None] = []
    leftovers.on_more = lambda: woken.append(None)
    leftovers.add(steps("a"))
    leftovers.add(steps("b"))
    assert len(woken) == 1
    one, other = leftovers.clear_up(), leftovers.clear_up()
    next(one)
    next(other)
    one.close()  # the one who did it goes
    with_breaths(other)
    assert done == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert not leftovers
