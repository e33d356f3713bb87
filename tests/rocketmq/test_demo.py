"""``make demo-rocketmq`` ends, leaves no files, and prints the output that docs/rocketmq.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.rocketmq import STEPS
from tests.support.pages import ROOT
from tests.support.rocketmq_programs.maven import missing

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SECONDS = 300


def blocks(page: str) -> dict[str, str]:
    """Returns the output under the heading of each step."""
    found = re.findall(r"^### ([^\n]*)\n(?:(?!^#).)*?^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return dict(found)


def steps(said: str) -> dict[str, str]:
    """Returns the output of each step of the demo."""
    parts = re.split(r"^== (.*)\n", said, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def shape(text: str) -> list[str]:
    """Returns the words, without times, ports, counts, widths and warnings about a busy machine."""
    shown = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    shown = re.sub(r"127\.0\.0\.\d:\d+", "ADDRESS", shown)
    shown = re.sub(r"\b(sent|after|in) \d+", r"\1 COUNT", shown)
    shown = re.sub(
        r"(^\$ nsctl doctor[^\n]*\n).*?^(?=messages)", _without_warnings, shown, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"[─\s]+", " ", shown).split()


def _without_warnings(found: re.Match[str]) -> str:
    """Drops the warnings of the doctor, which finds a blocked event loop on a busy machine."""
    assert "problem" not in found.group()
    return found.group(1)


def test_the_demo_prints_what_the_page_shows_and_leaves_no_files(tmp_path: Path) -> None:
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.rocketmq"],
        cwd=ROOT,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    said, page = steps(done.stdout), blocks((ROOT / "docs/rocketmq.md").read_text(encoding="utf-8"))
    for title, _ in STEPS:
        assert shape(said[title]) == shape(page[title]), f"the page does not show the output of the demo: {said[title]}"
    assert list(tmp_path.iterdir()) == []
