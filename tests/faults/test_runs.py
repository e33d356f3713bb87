"""Short runs of the suite: a fleet of real processes under seeded faults, held to every invariant.

A run that fails says its seed, the command that lets the same faults happen again, and where its history is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.nemesis import KINDS, OF_A_REPLICA
from tests.faults.profiles import run_profile


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_invariant_holds_whatever_happens_to_processes_and_network(seed: int, tmp_path: Path) -> None:
    outcome = run_profile(tmp_path, seed, "short", sorted(KINDS.keys() - OF_A_REPLICA))
    assert not outcome.violations, outcome.report()
