"""Each attack is withstood, and the program reports those that are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.faults.attack import addresses
from tests.faults.attack.runner import ROOT, Attack, Held, Target, exit_code, run
from tests.support.engines import require_native
from tests.support.programs.processes import Process, eventually

SECONDS = float(os.environ.get("FAULTS_ATTACK_SECONDS", "0.3"))
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


def failing(*errors: Exception, then: Exception | None = None) -> Callable[[], None]:
    """A call that ends with these errors, one after the other."""
    left = iter(errors)

    def ask() -> None:
        if error := next(left, then):
            raise error

    return ask


def refused(code: grpc.StatusCode, details: str) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


GONE = OSError("refused")
LIMIT = refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "open calls: 62251 is over the limit of 62250 for your address")
OTHERWISE = refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ({}, "held"),
        ({"ask": failing(GONE)}, "FAILED: OSError: refused"),
        ({"arrive": failing(GONE)}, "FAILED: afterwards: OSError: refused"),
        ({"ask_as_neighbour": failing(LIMIT)}, "held"),
        ({"ask_as_neighbour": failing(OTHERWISE)}, "FAILED: at the same address"),
        ({"ask_as_neighbour": failing(then=LIMIT)}, "FAILED: at the same address not back"),
    ],
)
def test_a_call_that_an_attack_spoils_is_reported(greedy: Process, calls: dict[str, Any], verdict: str) -> None:
    outcome = run(Target("it", greedy, failing())._replace(**calls), SHORT, 0.2)
    assert outcome.row().partition(verdict)[1]
    assert exit_code([outcome.held]) == (verdict != "held")


def test_memory_that_stays_is_reported(greedy: Process) -> None:
    before = Held.of(greedy).mebibytes

    def ask() -> None:
        if Held.of(greedy).mebibytes <= before + 64:
            greedy.signal(signal.SIGUSR1)
            eventually(lambda: Held.of(greedy).mebibytes > before + 64)

    outcome = run(Target("it", greedy, ask), SHORT, 0.2)
    assert (outcome.held, outcome.failed) == (False, 0)
    assert "stayed" in outcome.verdict


def test_an_attacker_whose_own_honest_calls_fail_is_reported(greedy: Process) -> None:
    ended = run(Target("it", greedy, failing()), SHORT._replace(command=(sys.executable, "-c", "raise SystemExit(1)")))
    assert ended.verdict == "FAILED: the attack failed"


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
