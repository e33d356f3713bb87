"""One attack, while an honest client calls: how the client fared, what the server kept, and the verdict."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import grpc

from namesrv_common.grpc_errors import RichError
from tests.faults.attack import addresses
from tests.faults.attack.catalogue import ATTACKS
from tests.support.programs.processes import Process, sample

ROOT = Path(__file__).parents[3]
MOST_MEBIBYTES = 64
"""What may stay of an attack."""
MOST_PEAK_MEBIBYTES = 320
"""What an attack may take in the meantime: the bounds of all connections together, and what allocators add."""
EXTRA_SECONDS = 10.0
"""What attacks that end by themselves may take beyond their time; then they are ended."""
SETTLED_MEBIBYTES = 16
"""What may stay before the next attack is measured."""
REST_SECONDS = 10.0
"""How long memory may take to be given back. Where more than ``MOST_MEBIBYTES`` stay, it is PATIENT times as long."""
PATIENT = 6
MORE_DESCRIPTORS = 6
"""Connections of the process that come and go by themselves."""
PAUSE_SECONDS = 0.01


class Target(NamedTuple):
    """A listener, with its server and an honest client."""

    title: str
    listener: str
    """Its key in ``ATTACKS``."""
    port: int
    process: Process
    """Whose memory is looked at."""
    ask: Callable[[], object]
    """An honest call, with a deadline. Raises what it fails with."""
    arrive: Callable[[], object] | None = None
    """An honest call over a new connection. None: each call of ``ask`` has one."""
    attacked: str = "namesrv"
    """``namesrv``, ``agent`` or ``clients``: the program and listener whose calls the attacks make."""

    def attacks(self) -> list[str]:
        """The attacks on it that this machine can make."""
        return [
            name
            for name, one in ATTACKS[self.listener].items()
            if (self.attacked == "namesrv" or not one.only_native) and (addresses.are_here() or not one.own_address)
        ]


HEAD = (
    "| attack | listener | bound | honest calls failed | p99 ms | MiB before | kept | verdict |\n"
    "|---|---|---|---|---|---|---|---|"
)


def run(target: Target, attack: str, seconds: float, rest_seconds: float = REST_SECONDS) -> tuple[bool, str]:
    """Attacks while the honest client asks; then waits for memory to be given back, so long at most.

    Returns:
        Whether the attack was withstood, and its row of the table.
    """
    pid = target.process.pid
    # What it holds now is its peak from now on (proc(5), clear_refs).
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    before, defects = sample(pid), len(target.process.events("internal_defect"))
    took, problems = _asking_beside(target, attack, seconds)
    began = time.monotonic()
    while True:
        now = sample(pid)
        kept, descriptors = (now["rss_kib"] - before["rss_kib"]) // 1024, now["files"] - before["files"]
        waited, is_ours_back = time.monotonic() - began, descriptors <= MORE_DESCRIPTORS
        if is_ours_back and kept <= (SETTLED_MEBIBYTES if waited < rest_seconds else MOST_MEBIBYTES):
            break
        if waited >= PATIENT * rest_seconds:
            break
        time.sleep(PAUSE_SECONDS)
    for ask in (target.ask, target.arrive):
        if ask is not None and (problem := _failure(ask)):
            problems.append(f"afterwards: {problem}")
    if (peak := (now["peak_kib"] - before["rss_kib"]) // 1024) > MOST_PEAK_MEBIBYTES:
        problems.append(f"it had {peak} MiB more meanwhile")
    if descriptors > MORE_DESCRIPTORS:
        problems.append(f"{descriptors} descriptors stayed")
    if len(target.process.events("internal_defect")) > defects:
        problems.append("the server logged an internal defect")
    p99 = quantiles(took, n=100, method="inclusive")[98] * 1000 if len(took) > 1 else float("nan")
    bound = ATTACKS[target.listener][attack].bound if target.attacked == "namesrv" else "grpcio's own (docs/limits.md)"
    is_held = not problems and kept <= MOST_MEBIBYTES
    verdict = "held" if is_held else f"FAILED: {problems[0] if problems else f'{kept} MiB stayed'}"
    calls = f"{len(problems)} of {len(took) + len(problems)}"
    fields = (attack, target.title, bound, calls, f"{p99:.1f}", before["rss_kib"] // 1024, f"{kept:+}", verdict)
    return is_held, f"| {' | '.join(map(str, fields))} |"


def _asking_beside(target: Target, attack: str, seconds: float) -> tuple[list[float], list[str]]:
    """Seconds of the calls that were answered, and what was wrong with the others."""
    took: list[float] = []
    problems: list[str] = []
    begun = time.monotonic()
    environment = {"ATTACKED": target.attacked}
    if addresses.are_here():
        environment["ATTACKED_AT"] = addresses.ATTACKER
    command = [sys.executable, "-m", "tests.faults.attack.catalogue", target.listener, attack]
    with Process([*command, str(target.port), str(seconds)], environment, folder=ROOT) as attacker:
        while attacker._popen.poll() is None and time.monotonic() - begun < seconds + EXTRA_SECONDS:
            asked = time.perf_counter()
            if problem := _failure(target.ask):
                problems.append(problem)
            else:
                took.append(time.perf_counter() - asked)
            time.sleep(PAUSE_SECONDS)
    if (attacker._popen.returncode or 0) > 0:
        problems.insert(0, attacker.raw.strip().rpartition("\n")[2][:200] or "the attack failed")
    if target.process._popen.poll() is not None:
        problems.append("the server has ended")
    return took, problems


def _failure(ask: Callable[[], object]) -> str:
    """What an honest call failed with, in one line; empty if it did not."""
    try:
        ask()
    except grpc.RpcError as error:
        rich = RichError.of(error)
        text = f"{rich.code} {rich.message}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes to the table
        text = f"{type(error).__name__}: {error}"
    else:
        return ""
    return text.partition("\n")[0][:200]
