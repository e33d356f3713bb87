"""Yield points of long computations: where they come, and what they leave as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from namesrv.core.pace import paced
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
