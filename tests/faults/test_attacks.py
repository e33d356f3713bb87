"""Each attack is withstood, and the program reports those that are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from release.engine import run as run_to_its_end
from tests.faults.attack import addresses
from tests.faults.attack.runner import ROOT, Target, run
from tests.support.engines import require_native
from tests.support.programs.processes import Process

SECONDS = "0.3"
IDLE = 'import sys, time; print(\'{"event": "started"}\', file=sys.stderr, flush=True); time.sleep(60)'


@pytest.fixture
def idle() -> Iterator[Process]:
    with Process([sys.executable, "-c", IDLE]) as process:
        process.wait_for("started")
        yield process


def answered() -> None:
    """A call that is answered."""


def gone() -> None:
    raise OSError("refused")


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ({}, "held"),
        ({"ask": gone}, "FAILED: OSError: refused"),
        ({"arrive": gone}, "FAILED: afterwards: OSError: refused"),
    ],
)
def test_a_call_that_an_attack_spoils_is_reported(idle: Process, calls: dict[str, Any], verdict: str) -> None:
    # Nobody listens there, and the attack does not mind.
    is_held, row = run(Target("it", "grpc", 9, idle, answered)._replace(**calls), "idle-connections", 0.2, 0.2)
    assert row.endswith(f"| {verdict} |")
    assert is_held == (verdict == "held")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("listener", ["grpc", "remoting", "agent"])
def test_each_attack_is_withstood(listener: str) -> None:
    require_native()
    attack = [sys.executable, "-m", "tests.faults.attack", "--on", listener, "--seconds", SECONDS]
    run_to_its_end(attack, folder=str(ROOT), timeout=600)
    if problem := addresses.why_not():
        pytest.skip(f"the attacker has no address of its own, and attacks that need one are left out: {problem}")
