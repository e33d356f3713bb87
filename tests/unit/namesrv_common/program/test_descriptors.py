"""How many descriptors connections may take."""

from __future__ import annotations

import resource

import pytest

from namesrv_common.process.program import FOR_OTHERS, MOST, without_others


@pytest.mark.parametrize(
    ("limit", "left"),
    [(65_536, 65_536 - FOR_OTHERS), (1_024, 768), (400, 300), (resource.RLIM_INFINITY, MOST - FOR_OTHERS)],
)
def test_some_are_for_others_than_connections(limit: int, left: int) -> None:
    assert without_others(limit) == left
