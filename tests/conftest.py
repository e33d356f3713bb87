"""Rules for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A deadline would be a timed assertion: a busy machine fails it.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what CI does without."""
    parser.addoption("--all-engines", action="store_true", help="run every test of a server on the envoy engine, too")
