"""The map of topics compared with a dictionary: changed copies, and those that they were made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core import persistent_map
from namesrv.core.persistent_map import PersistentMap
from tests.support.yield_points import yield_points_of

NAMES = [f"topic-{number}" for number in range(12)]
CHANGES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 2)), max_size=10)


@contextmanager
def small_chunks() -> Iterator[None]:
    """Spreads few names over several chunks, and makes a map sparse soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent_map, "CHUNK", 3)
        patch.setattr(persistent_map, "SPARE", 0)
        yield


@given(changes=CHANGES)
def test_each_changed_copy_is_a_dictionary_and_stays_so(changes: list[dict[str, int | None]]) -> None:
    with small_chunks():
        copies, expected = [PersistentMap[str, int]()], [dict[str, int]()]
        for change in changes:
            rows = {**expected[-1], **change}
            expected.append({name: value for name, value in rows.items() if value is not None})
            copies.append(copies[-1].changed(change).compacted())
            assert not copies[-1].is_sparse
        for copy, held in zip(copies, expected, strict=True):
            assert dict(copy.rows()) == dict(copy) == held
            assert len(copy) == len(held)
            assert {name: copy.get(name) for name in NAMES} == {name: held.get(name) for name in NAMES}
            assert [name for name in NAMES if name in copy] == [name for name in NAMES if name in held]
    versions = [(copy.names_version, held.keys()) for copy, held in zip(copies, expected, strict=True)]
    assert all((one == next_one) is (names == after) for (one, names), (next_one, after) in pairwise(versions))


def test_a_change_copies_the_chunks_that_it_touches_with_yield_points() -> None:
    rows = PersistentMap[str, int]().changed({f"t-{number}": number for number in range(10_000)})
    after = rows.changed({"t-1": None})
    assert sum(mine is not its for mine, its in zip(rows.chunks, after.chunks, strict=True)) == 1
    assert yield_points_of(lambda: rows.changed({f"t-{number}": 0 for number in range(0, 10_000, 2)})) >= 100
