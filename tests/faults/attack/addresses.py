"""Addresses of their own for attackers and honest clients, in a network namespace with only loopback.

A program's own address is the one that it dials, so no program has to bind. An address of loopback itself would not do:
name servers count all programs of their machine as one caller without a share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

ATTACKER, HONEST = "10.77.3.2", "10.77.3.3"
_ENTERED = "TESTS_FAULTS_ADDRESSES"
_SETUP = f"""
ip link set lo up && ip address add {ATTACKER}/32 dev lo && ip address add {HONEST}/32 dev lo && exec "$@"
"""
_TRY_SECONDS = 20.0


def are_here() -> bool:
    """Whether this process is in such a namespace."""
    return _ENTERED in os.environ


def why_not() -> str:
    """What is missing on this machine; empty if such a namespace can be made."""
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)}"
    tried = subprocess.run(_inside(["true"]), capture_output=True, text=True, check=False, timeout=_TRY_SECONDS)
    return tried.stderr.strip().partition("\n")[0] if tried.returncode else ""


def run_inside(command: Sequence[str]) -> int:
    """Runs a command in a namespace of its own; returns its exit code."""
    return subprocess.run(_inside(command), env={**os.environ, _ENTERED: "1"}, check=False).returncode


def _inside(command: Sequence[str]) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "sh", "-c", _SETUP, "sh", *command]
