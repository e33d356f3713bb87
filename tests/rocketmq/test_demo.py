"""``make demo-rocketmq`` takes all its steps, and leaves no files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rocketmq.demo import STEPS
from tests.support.pages import ROOT
from tests.support.rocketmq_programs.maven import missing

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SECONDS = 300


def test_the_demo_takes_all_steps_and_leaves_no_files(tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    done = subprocess.run(
        [sys.executable, "-m", "tests.rocketmq.demo"],
        cwd=ROOT,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    titles = [title for title, _ in STEPS]
    assert [line for line in re.findall(r"^== (.*)$", done.stdout, re.MULTILINE) if line in titles] == titles
    assert list(tmp_path.iterdir()) == []
