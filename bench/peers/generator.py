"""The load generator: built on first use, and run with a plan. Its source is in ``bench/load_generator``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import progress
from bench.peers.calls import Call

CACHE = Path(__file__).parents[2] / ".bench"
"""Downloads and builds, which are not committed."""
PROFILE, TRIAL = "LOAD_GENERATOR_PROFILE", "trial"
"""The variable of the environment that names the profile of Cargo.toml with which it is compiled, and the one that is
compiled in a third of the time. For figures it is ``release``."""
_SOURCE = Path(__file__).parents[1] / "load_generator"
_BUILD_SECONDS = 3_600.0
_EXTRA_SECONDS = 400.0
"""What a run may take beyond its own times: filling, connecting, the last answers."""


class NotMeasured(Exception):
    """A server or the load generator cannot run here, or a run failed."""


class Group(NamedTuple):
    """Connections that send one list of calls, from its start again when it is through; that of a fill, once.

    Without a rate, and with n calls under way, the first of them is followed by call n, call 2n, and so on.
    """

    name: str
    calls: Sequence[Call]
    connections: int
    in_flight: int = 1
    """Calls under way at once on each connection; with a rate, how many of them at most."""
    rate: float | None = None
    """Calls per second of all connections, whether or not answers come. With None, a call follows each answer."""


class Plan(NamedTuple):
    """One run. ``bench/load_generator/src/plan.rs`` says more."""

    target: str
    protocol: str
    server_pid: int
    fill: Group
    groups: Sequence[Group]
    seconds: float
    warm_up_seconds: float = 1.0
    tls_ca: Path | None = None


@cache
def program() -> Path:
    """The load generator, compiled. Raises NotMeasured."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NotMeasured("cargo is missing, which builds the load generator")
    progress("peers: building the load generator, if it is not yet")
    target, profile = CACHE / "load-generator", os.environ.get(PROFILE, "release")
    place = ("--target-dir", str(target), "--manifest-path", str(_SOURCE / "Cargo.toml"))
    command = [cargo, "build", "--profile", profile, "--quiet", "--locked", *place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    if done.returncode != 0:
        raise NotMeasured(f"the load generator cannot be built: {(done.stdout + done.stderr)[-2_000:]}")
    return target / profile / "load-generator"


def pinned(cores: str | None) -> list[str]:
    """What to put before a command that is to run on these cores only."""
    return ["taskset", "--cpu-list", cores] if cores else []


def run(plan: Plan, cores: str | None, folder: Path) -> dict[str, Any]:
    """Runs a plan in a process of its own; returns what the load generator measured.

    Args:
        plan: What to do.
        cores: The cores that it may use; None means all.
        folder: Where calls are kept between runs: a group of the same name and protocol must have the same calls.

    Raises:
        NotMeasured: The table could not be filled, or the server did not answer.
    """
    described = {
        **plan._asdict(),
        "fill": _described(plan.fill, plan.protocol, folder),
        "groups": [_described(group, plan.protocol, folder) for group in plan.groups],
        "tls_ca": plan.tls_ca and str(plan.tls_ca),
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(described))
    timeout = plan.warm_up_seconds + plan.seconds + _EXTRA_SECONDS
    command = [*pinned(cores), str(program()), "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise NotMeasured(f"the load generator says: {done.stderr.strip()}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def _described(group: Group, protocol: str, folder: Path) -> dict[str, Any]:
    script = folder / f"{protocol}-{group.name}.calls"
    if not script.exists():
        _write(script, group.calls)
    described = {**group._asdict(), "script": str(script)}
    del described["calls"]
    return described


def _write(path: Path, order: Sequence[Call]) -> None:
    """The first line is JSON: the kinds, the different calls and the order of all calls. The bytes of the calls follow.

    A call has the number of its kind, the position of its opaque number, and its length.
    """
    calls = list({id(call): call for call in order}.values())
    numbers = {id(call): number for number, call in enumerate(calls)}
    kinds = list(dict.fromkeys(call.kind for call in calls))
    told = {
        "kinds": kinds,
        "calls": [(kinds.index(call.kind), call.opaque_at, len(call.data)) for call in calls],
        "order": [numbers[id(call)] for call in order],
    }
    path.write_bytes(b"".join((json.dumps(told).encode(), b"\n", *(call.data for call in calls))))
