"""Sorting in steps gives what sorting gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core import slices
from namesrv.core.slices import run_steps, sorted_in_slices


@given(st.lists(st.text(max_size=5), max_size=2_000))
def test_the_result_is_sorted(names: list[str]) -> None:
    assert run_steps(sorted_in_slices(names.copy())) == sorted(names)


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
