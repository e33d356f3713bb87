"""A short run of the suite: a fleet of real processes under seeded faults, held to every invariant.

A run that fails says its seed, the command that lets the same faults happen again, and where its history is.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.nemesis import KINDS, OF_ROCKETMQ
from tests.faults.profiles import Outcome, replay, run_profile


@pytest.mark.timeout(300)
def test_every_invariant_holds_whatever_happens_to_processes_and_network(tmp_path: Path) -> None:
    seed = random.randrange(2**16)
    print(f"seed {seed}")
    outcome = run_profile(tmp_path, seed, "short", sorted(KINDS.keys() - OF_ROCKETMQ))
    assert not outcome.violations, outcome.report()


def test_a_broken_run_says_where_its_history_is_and_how_to_repeat_it(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, 7, replay(7, "short", ["cut", "reset"], 5), ["found: T0 is NOT_FOUND"], [])
    assert outcome.report().splitlines() == [
        "seed 7: BROKEN",
        "records: ",
        "name servers agreed within ",
        "found: T0 is NOT_FOUND",
        f"1 violations; history: {tmp_path}/history.jsonl",
        "again: python -m tests.faults --seed 7 --profile short --rounds 5 --faults cut reset",
        f"checks: python -m tests.faults --check {tmp_path}/history.jsonl",
    ]
