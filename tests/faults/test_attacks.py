"""``make attack`` reports what is not withstood; agents withstand slow, silent, flooding and never-reading peers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.faults.attack import __main__ as program
from tests.faults.attack.runner import Attack, Round, Target, exit_code, run
from tests.faults.load.hostile import Held
from tests.support.programs.processes import Process, eventually

SECONDS = float(os.environ.get("FAULTS_ATTACK_SECONDS", "0.5"))
REST_SECONDS = 0.2
GREEDY = """
import json, signal, sys
kept = []
signal.signal(signal.SIGUSR1, lambda *_: kept.append(bytearray(b"x") * (100 << 20)))
print(json.dumps({"event": "started"}), file=sys.stderr, flush=True)
while True:
    signal.pause()
"""
"""A server that keeps 100 MiB whenever it is told to."""
SHORT = Attack("short", "none", (sys.executable, "-c", "import time; time.sleep(0.2)"), 5.0)


@pytest.fixture
def greedy() -> Iterator[Process]:
    with Process([sys.executable, "-c", GREEDY]) as process:
        process.wait_for("started")
        yield process


def test_an_attack_that_is_withstood_is_said_to_be(greedy: Process) -> None:
    outcome = run(Target("it", greedy, lambda: None), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.failed, exit_code([outcome])) == (True, 0, 0)
    assert outcome.calls > 0


def test_an_honest_call_that_fails_is_reported(greedy: Process) -> None:
    answers = iter([None, OSError("refused")])

    def ask() -> None:
        if error := next(answers, None):
            raise error

    outcome = run(Target("it", greedy, ask), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.failed, exit_code([outcome])) == (False, 1, 1)
    assert "OSError: refused" in outcome.row()


def test_memory_that_stays_is_reported(greedy: Process) -> None:
    before = Held.of(greedy).mebibytes

    def ask() -> None:
        if Held.of(greedy).mebibytes <= before + 64:
            greedy.signal(signal.SIGUSR1)
            eventually(lambda: Held.of(greedy).mebibytes > before + 64)

    outcome = run(Target("it", greedy, ask), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.failed, exit_code([outcome])) == (False, 0, 1)
    assert outcome.kept > 64
    assert "stayed" in outcome.verdict


def test_an_attacker_whose_own_honest_calls_fail_is_reported(greedy: Process) -> None:
    ended = run(
        Target("it", greedy, lambda: None), SHORT._replace(command=(sys.executable, "-c", "raise SystemExit(1)"))
    )
    assert (ended.held, ended.verdict) == (False, "FAILED: the attack failed")


def test_there_is_an_exit_code_for_names_that_are_none() -> None:
    assert exit_code([]) == 2


@pytest.fixture(scope="module")
def rounds() -> Iterator[list[Round]]:
    """An agent's two listeners, with all attacks on them."""
    with program.agent(SECONDS) as found:
        yield [(target, list(attacks)) for target, attacks in found]


ATTACKS = (
    *("random-frames", "declared-sizes", "many-streams", "slow-readers", "slow-writers", "pings", "idle-connections"),
    *("half-open", "connection-flood", "half-messages", "slow-bodies", "requests-unread"),
)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("listener", [0, 1], ids=["operators", "clients"])
def test_an_agent_answers_while_a_peer_attacks(rounds: list[Round], listener: int, name: str) -> None:
    target, attacks = rounds[listener]
    attack = next(attack for attack in attacks if attack.name == name)
    outcome = run(target, attack)
    assert outcome.failed == 0, outcome.problem
    assert outcome.held, outcome.verdict
