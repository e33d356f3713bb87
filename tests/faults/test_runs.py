"""Short runs of the suite: a fleet of real processes under seeded faults, held to every invariant.

A run that fails says its seed, the command that lets the same faults happen again, and where its history is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.history import of_kind, read_history
from tests.faults.nemesis import KINDS, OF_A_PIPELINE, OF_A_REPLICA, OF_ROCKETMQ
from tests.faults.profiles import Outcome, replay, run_profile
from tests.faults.run import Pace, Parts, run
from tests.faults.schedule import Fault, Round

ROUNDS_OF_A_REPLICA = (
    Round((Fault("kill-replica", 0.5, "0"),), 0.5),
    Round((Fault("cut-replica", 8.0, "0"),), 0.5),
    Round((Fault("kill-leader", 0.5, "0"),), 0.5),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_invariant_holds_whatever_happens_to_processes_and_network(seed: int, tmp_path: Path) -> None:
    outcome = run_profile(tmp_path, seed, "short", sorted(KINDS.keys() - OF_A_REPLICA - OF_A_PIPELINE - OF_ROCKETMQ))
    assert not outcome.violations, outcome.report()


@pytest.mark.timeout(300)
def test_a_copy_says_what_its_leader_said_and_when_it_cannot_hear_it(tmp_path: Path) -> None:
    assert run(tmp_path, 1, ROUNDS_OF_A_REPLICA, Pace(), Parts(replicas=True)) == []
    records = read_history(tmp_path / "history.jsonl")
    cut, healed = (link["at"] for link in of_kind(records, "link"))
    assert any(not said["ready"] for said in of_kind(records, "replica") if cut < said["at"] < healed), "no cut"


def test_a_broken_run_says_its_seed_where_its_history_is_and_how_to_have_it_again(tmp_path: Path) -> None:
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
