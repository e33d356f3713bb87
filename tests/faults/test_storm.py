"""A name server that comes back to a crowd: a small storm. The large one is ``python -m tests.faults.load.storm``."""

from __future__ import annotations

import pytest

from tests.faults.load.storm import storm


@pytest.mark.timeout(300)
def test_after_a_storm_everybody_is_back_and_nobody_was_told_that_a_route_is_gone() -> None:
    outcome = storm(watchers=120, brokers=30, topics=300)
    assert outcome.wrong_empties == 0
    assert outcome.not_found == 0
