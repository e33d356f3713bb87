"""docs/broker_agent.md names only settings that there are."""

from __future__ import annotations

import re
from pathlib import Path

from broker_agent.settings import AgentSettings
from groundwork.version import __version__

PAGE = Path(__file__).resolve().parents[3] / "docs" / "broker_agent.md"
OF_THE_PROGRAM = {"config", "help"}


def test_every_flag_on_the_page_is_a_setting() -> None:
    named = {flag.removeprefix("no-") for flag in re.findall(r"--([a-z][a-z-]+)", PAGE.read_text(encoding="utf-8"))}
    assert len(named) > 10
    settings = {name.replace("_", "-") for name in AgentSettings.model_fields}
    assert named - settings <= OF_THE_PROGRAM


def test_the_sample_of_a_status_is_of_this_version() -> None:
    assert re.findall(r'^version: "(.+)"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE) == [__version__]
