"""Expectations about refused calls."""

from __future__ import annotations

import pytest

from namesrv_common.errors import Refused


def refuses(*reasons: str, match: str | None = None) -> pytest.RaisesExc[Refused]:
    """A context whose end must be ``Refused`` for one of these reasons, with a text that matches."""
    return pytest.raises(Refused, match=match, check=lambda error: error.reason in reasons)
