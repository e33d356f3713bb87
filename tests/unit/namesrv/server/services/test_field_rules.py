"""Rules that requests of several services keep."""

from __future__ import annotations

import pytest

from namesrv.core.errors import InvalidField
from namesrv.server.services import field_rules


def test_page_sizes_are_defaulted_cut_and_never_negative() -> None:
    assert [field_rules.page_size(size) for size in (0, 1, 10_000, 10_001)] == [1_000, 1, 10_000, 10_000]
    with pytest.raises(InvalidField, match="page_size"):
        field_rules.page_size(-1)
