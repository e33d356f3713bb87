"""One attack beside an honest client: how the client fared, what the server kept, and whether that is withstood."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import quantiles
from typing import NamedTuple

from tests.faults.load.hostile import ROOT, Held
from tests.support.programs.processes import Process

MOST_MEBIBYTES = 64
"""What may stay of an attack."""
MOST_SECONDS = 30.0
"""After which an attack is ended, whatever it does."""
REST_SECONDS = 10.0
"""How long memory may take to be given back."""
PAUSE_SECONDS = 0.01
MOST_ERRORS_SHOWN = 1


class Target(NamedTuple):
    """A listener, or a source, with its server and an honest client."""

    listener: str
    process: Process
    """Whose memory is looked at."""
    ask: Callable[[], None]
    """An honest call, with a deadline. Raises what it fails with."""


class Attack(NamedTuple):
    """An attack on a listener."""

    name: str
    bound: str
    """What holds it."""
    command: Sequence[str]
    """Attacks, and ends by itself or is ended; exit code 1: a client of its own, which was honest, has failed."""
    most_seconds: float
    """After which it is ended; ``MOST_SECONDS`` if that is less."""
    environment: Mapping[str, str] = {}


Round = tuple[Target, Iterable[Attack]]
"""A target, and what it has to withstand."""


class Outcome(NamedTuple):
    """What came of an attack."""

    attack: str
    listener: str
    bound: str
    calls: int
    failed: int
    problem: str
    """Of the first call that failed; empty if there is none."""
    p99_millis: float
    before: int
    """MiB of the server."""
    kept: int
    """MiB that it has more some seconds later."""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.failed:
            return f"FAILED: {self.problem}"
        return f"FAILED: {self.kept} MiB stayed" if self.kept > MOST_MEBIBYTES else "held"

    @property
    def held(self) -> bool:
        """Whether it was withstood."""
        return not self.failed and self.kept <= MOST_MEBIBYTES

    def row(self) -> str:
        """Of the table."""
        fields = (self.attack, self.listener, self.bound, f"{self.failed} of {self.calls}", f"{self.p99_millis:.1f}")
        return f"| {' | '.join(fields)} | {self.before} | {self.kept:+} | {self.verdict} |"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Of the program: 0 if all attacks were withstood, 1 if not, 2 if there were none."""
    return 2 if not outcomes else int(not all(outcome.held for outcome in outcomes))


HEAD = (
    "| attack | listener | bound | honest calls failed | p99 ms | MiB before | kept | verdict |\n"
    "|---|---|---|---|---|---|---|---|"
)


def run(target: Target, attack: Attack, rest_seconds: float = REST_SECONDS) -> Outcome:
    """Attacks while the honest client asks; then waits for memory to be given back, so long at most."""
    before = Held.of(target.process).mebibytes
    took, problems = _asking_beside(target, attack)
    until = time.monotonic() + rest_seconds
    while (kept := Held.of(target.process).mebibytes - before) > MOST_MEBIBYTES and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
    if problem := _failure(target.ask):
        problems.append(f"afterwards: {problem}")
    p99 = quantiles(took, n=100, method="inclusive")[98] * 1000 if len(took) > 1 else float("nan")
    first = problems[0] if problems else ""
    return Outcome(
        attack.name, target.listener, attack.bound, len(took) + len(problems), len(problems), first, p99, before, kept
    )


def _asking_beside(target: Target, attack: Attack) -> tuple[list[float], list[str]]:
    """Seconds of the calls that were answered, and what was wrong with the others."""
    took: list[float] = []
    problems: list[str] = []
    begun = time.monotonic()
    environment = {**os.environ, **attack.environment}
    with subprocess.Popen(
        attack.command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as attacker:
        try:
            while attacker.poll() is None and time.monotonic() - begun < min(MOST_SECONDS, attack.most_seconds):
                asked = time.perf_counter()
                if problem := _failure(target.ask):
                    problems.append(problem)
                else:
                    took.append(time.perf_counter() - asked)
                time.sleep(PAUSE_SECONDS)
        finally:
            attacker.kill()
        assert attacker.stderr is not None
        said = attacker.stderr.read().strip()
    if attacker.returncode > 0:
        problems.insert(0, said.splitlines()[-1][:200] if said else "the attack failed")
    if target.process._popen.poll() is not None:
        problems.append("the server has ended")
    return took, problems


def _failure(ask: Callable[[], None]) -> str:
    """What an honest call failed with; empty if it did not."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes to the table
        code = getattr(error, "code", None)
        return str(code() if callable(code) else f"{type(error).__name__}: {error}").partition("\n")[0][:200]
    return ""
