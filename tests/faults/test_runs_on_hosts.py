"""A short run on hosts of its own, where packets really get lost: network namespaces in place of the proxy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.fleet.fleet import ROOT
from tests.faults.network.namespaces import why_not

FAULTS = ("cut", "cut-one-way", "cut-off-agent", "lossy")


@pytest.mark.timeout(300)
def test_every_invariant_holds_when_packets_between_hosts_are_lost(tmp_path: Path) -> None:
    if problem := why_not():
        pytest.skip(problem)
    command = [sys.executable, "-m", "tests.faults", "--hosts", "--rounds", "4", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--faults", *FAULTS], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    links = [line for line in (tmp_path / "seed-1" / "history.jsonl").read_text().splitlines() if '"link"' in line]
    assert links, "nothing was cut"
