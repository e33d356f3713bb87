"""docs/rocketmq.md tells of the steps that ``make demo-rocketmq`` takes, and shows what it says."""

from __future__ import annotations

import re

from demo.rocketmq import STEPS
from support.pages import ROOT

PAGE = (ROOT / "docs/rocketmq.md").read_text(encoding="utf-8")


def test_the_steps_of_the_page_are_those_that_the_demo_takes() -> None:
    assert re.findall(r"^### (.*)$", PAGE.partition("\n## What callers may do")[0], re.MULTILINE) == [
        title for title, _ in STEPS
    ]


def test_each_step_shows_what_the_demo_says() -> None:
    shown = re.findall(r"^### (?:(?!^#).)*?^```text\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(shown) == len(STEPS)
