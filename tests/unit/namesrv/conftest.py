"""Fixtures that most tests of the name server's core begin with."""

from __future__ import annotations

import pytest

from tests.support.core_fleet import Fleet


@pytest.fixture
def fleet() -> Fleet:
    """A name server's core under a virtual clock."""
    return Fleet()
