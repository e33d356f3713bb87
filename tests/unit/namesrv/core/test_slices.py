"""Sorting in steps gives what sorting gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.slices import SORT_SLICE, run_sync, sorted_in_slices


@given(st.lists(st.text(max_size=5), max_size=2_000))
def test_the_result_is_sorted(names: list[str]) -> None:
    assert run_sync(sorted_in_slices(names)) == sorted(names)


def test_it_gives_way_while_it_fills_buckets_and_while_it_sorts_them() -> None:
    names = [f"topic-{number * 7919 % 50_000:05}" for number in range(50_000)]
    steps = sorted_in_slices(names)
    given_way = sum(1 for _ in steps)
    assert given_way >= 2 * (50_000 // SORT_SLICE) - 2
