"""A short run of the suite: a fleet of real processes under seeded faults, held to every invariant.

A run that fails says its seed, the command that lets the same faults happen again, and where its history is.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.nemesis import KINDS, OF_ROCKETMQ
from tests.faults.run import run_profile


@pytest.mark.timeout(300)
def test_every_invariant_holds_whatever_happens_to_processes_and_network(tmp_path: Path) -> None:
    seed = random.randrange(2**16)
    print(f"seed {seed}")
    is_sound, report = run_profile(tmp_path, seed, "short", sorted(KINDS.keys() - OF_ROCKETMQ))
    assert is_sound, report
