"""Each attack is withstood, and ``make attack`` reports those that are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, repeat

import grpc
import pytest

from tests.faults.attack import addresses
from tests.faults.attack.busy import Busy
from tests.faults.attack.runner import ROOT, Attack, Held, Target, exit_code, run
from tests.support.engines import require_native
from tests.support.programs.processes import Process, eventually

SECONDS = float(os.environ.get("FAULTS_ATTACK_SECONDS", "0.3"))
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
    assert (outcome.held, outcome.failed, exit_code([outcome.held])) == (True, 0, 0)
    assert outcome.calls > 0


def test_an_honest_call_that_fails_is_reported(greedy: Process) -> None:
    answers = iter([None, OSError("refused")])

    def ask() -> None:
        if error := next(answers, None):
            raise error

    outcome = run(Target("it", greedy, ask), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.failed, exit_code([outcome.held])) == (False, 1, 1)
    assert "OSError: refused" in outcome.row()


def test_a_new_client_that_is_not_served_is_reported(greedy: Process) -> None:
    def arrive() -> None:
        raise OSError("refused")

    outcome = run(Target("it", greedy, lambda: None, arrive=arrive), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.problem) == (False, "afterwards: OSError: refused")


def test_memory_that_stays_is_reported(greedy: Process) -> None:
    before = Held.of(greedy).mebibytes

    def ask() -> None:
        if Held.of(greedy).mebibytes <= before + 64:
            greedy.signal(signal.SIGUSR1)
            eventually(lambda: Held.of(greedy).mebibytes > before + 64)

    outcome = run(Target("it", greedy, ask), SHORT, REST_SECONDS)
    assert (outcome.held, outcome.failed, exit_code([outcome.held])) == (False, 0, 1)
    assert outcome.kept > 64
    assert "stayed" in outcome.verdict


def test_an_attacker_whose_own_honest_calls_fail_is_reported(greedy: Process) -> None:
    ended = run(
        Target("it", greedy, lambda: None), SHORT._replace(command=(sys.executable, "-c", "raise SystemExit(1)"))
    )
    assert (ended.held, ended.verdict) == (False, "FAILED: the attack failed")


def refused(code: grpc.StatusCode, details: str) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


LIMIT = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "open calls: 62251 is over the limit of 62250 for your address")
OTHERWISE = refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


@pytest.mark.parametrize(("error", "held"), [(LIMIT, True), (OTHERWISE, False)])
def test_a_client_at_the_attackers_address_may_only_be_told_of_a_limit(
    greedy: Process, error: Exception, held: bool
) -> None:
    answers = chain([error], repeat(None))

    def ask() -> None:
        if (problem := next(answers)) is not None:
            raise problem

    outcome = run(Target("it", greedy, lambda: None, ask), SHORT, REST_SECONDS)
    assert outcome.neighbour is not None
    assert (outcome.held, outcome.neighbour.refused) == (held, 1)
    assert ("at the same address" in outcome.verdict) is not held


def test_a_client_at_the_attackers_address_that_does_not_come_back_is_reported(greedy: Process) -> None:
    def ask() -> None:
        raise LIMIT

    outcome = run(Target("it", greedy, lambda: None, ask), SHORT, REST_SECONDS)
    assert not outcome.held
    assert "not back" in outcome.verdict


FAST = Busy("control", "10", 9, [], {"lookups": 5.0}, {"1,000 topics": 500.0, "100,000 topics": 800.0}, 70, 90, 0)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (FAST, "held"),
        (FAST._replace(p99={"lookups": 25.1}), "SLOW: lookups"),
        (FAST._replace(problems=["misses: OSError: no"]), "FAILED: misses: OSError: no"),
        (FAST._replace(kept=65), "FAILED: 65 MiB stayed"),
    ],
)
def test_honest_calls_beside_a_busy_attacker_are_compared_with_the_controls(outcome: Busy, verdict: str) -> None:
    controls = {"lookups-of-few": FAST, "one-large-registration": FAST}
    assert outcome.verdict(controls) == verdict


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("listener", ["grpc", "remoting", "agent"])
def test_each_attack_is_withstood(listener: str) -> None:
    require_native()
    attack = [sys.executable, "-m", "tests.faults.attack", "--on", listener, "--seconds", str(SECONDS)]
    done = subprocess.run(attack, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if problem := addresses.why_not():
        pytest.skip(f"the attacker has no address of its own, and attacks that need one are left out: {problem}")
