"""What all tests go by."""

from __future__ import annotations

from hypothesis import settings

# A deadline would be a timed assertion: a busy machine fails it.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
