"""How many examples a property test tries: few and always the same in ``make test``, many new ones in ``make fuzz``."""

from __future__ import annotations

from hypothesis import settings

MORE = 20
"""How many times as many examples ``make fuzz`` tries."""

_DEFAULT = 100
"""Hypothesis's own number, where a profile says no other."""


def examples(count: int) -> int:
    """A number of examples under the profile of this run, for a test for which ``make test`` tries so many."""
    return count * settings().max_examples // _DEFAULT
