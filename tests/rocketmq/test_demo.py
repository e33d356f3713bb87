"""``make demo-rocketmq`` takes all its steps, and leaves no files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from release.engine import REPOSITORY, run
from tests.rocketmq.demo import STEPS
from tests.support.rocketmq_programs.maven import missing

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SECONDS = 300


def test_the_demo_takes_all_steps_and_leaves_no_files(tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    demo = [sys.executable, "-m", "tests.rocketmq.demo"]
    said = run(demo, environment=environment, folder=str(REPOSITORY), timeout=SECONDS)
    titles = [title for title, _ in STEPS]
    assert [line for line in re.findall(r"^== (.*)$", said, re.MULTILINE) if line in titles] == titles
    assert list(tmp_path.iterdir()) == []
