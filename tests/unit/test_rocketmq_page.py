"""docs/rocketmq.md has the steps and the output of ``make demo-rocketmq``."""

from __future__ import annotations

import re

import pytest

from examples.demo.rocketmq import STEPS, main
from tests.support.pages import ROOT

PAGE = (ROOT / "docs/rocketmq.md").read_text(encoding="utf-8")


def test_the_page_has_the_steps_of_the_demo() -> None:
    assert re.findall(r"^### (.*)$", PAGE.partition("\n## What callers may do")[0], re.MULTILINE) == [
        title for title, _ in STEPS
    ]


def test_each_step_of_the_page_shows_an_output() -> None:
    shown = re.findall(r"^### (?:(?!^#).)*?^```text\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(shown) == len(STEPS)


def test_the_demo_names_a_missing_requirement_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value) == "RocketMQ's programs need Java 11 or later (a JDK) and Maven: java is missing"
