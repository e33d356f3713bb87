"""Rules that requests of several services keep."""

from __future__ import annotations

from namesrv.app import field_rules
from namesrv.core.errors import Reason
from tests.support.refusals import refuses


def test_page_sizes_are_defaulted_cut_and_never_negative() -> None:
    assert [field_rules.page_size(size) for size in (0, 1, 10_000, 10_001)] == [1_000, 1, 10_000, 10_000]
    with refuses(Reason.INVALID_FIELD, match="page_size"):
        field_rules.page_size(-1)
