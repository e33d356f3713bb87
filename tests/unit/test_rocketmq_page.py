"""docs/rocketmq.md has the steps and the output of ``make demo-rocketmq``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.demo.rocketmq import STEPS, main
from namesrv.settings import NamesrvSettings
from tests.support.pages import ROOT
from tests.support.rocketmq_programs.tls import properties_of
from tests.support.secured.certificates import Authority

PAGE = (ROOT / "docs/rocketmq.md").read_text(encoding="utf-8")


def test_the_page_has_the_steps_of_the_demo() -> None:
    assert re.findall(r"^### (.*)$", PAGE.partition("\n## What callers may do")[0], re.MULTILINE) == [
        title for title, _ in STEPS
    ]


def test_each_step_of_the_page_shows_an_output() -> None:
    shown = re.findall(r"^### (?:(?!^#).)*?^```text\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(shown) == len(STEPS)


def test_the_commands_for_a_private_network_and_mutual_tls_are_complete() -> None:
    section = PAGE.partition("\n## Start a name server\n")[2].partition("\n## ")[0].replace("\\\n", "")
    commands = re.findall(r"^\$ namesrv serve (.+)$", section, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        given = {
            name.replace("-", "_"): value or True
            for name, value in re.findall(r"--([\w-]+)(?: +([^-\s]\S*))?", command)
        }
        settings = NamesrvSettings.load(None, given)
        assert (settings.listen, settings.remoting_listen) == ("0.0.0.0:9878", "0.0.0.0:9876")
        assert settings.allow_insecure != (settings.remoting_tls_mode == "enforcing")


def test_the_command_of_a_broker_with_tls_gives_what_the_tests_of_tls_give(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tried = properties_of(authority, authority.sign("broker", ["localhost"])).keys()
    assert set(re.findall(r"-D(tls[.\w]+)=", PAGE)) == tried | {"tls.server.mode"}
    table = PAGE.partition("| property | value |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(tls\.\w[\w.]+)`", table)) == tried | {"tls.server.mode"}


def test_the_commands_that_need_the_grade_of_operators_are_named() -> None:
    table = PAGE.partition("| command | what it needs `operators` for |")[2].partition("\n\n")[0]
    for command in ("updateTopic -o true", "admin.DeleteTopic", "wipeWritePerm", "updateKvConfig", "getNamesrvConfig"):
        assert command in table


def test_the_demo_names_a_missing_requirement_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value) == "RocketMQ's programs need Java 11 or later (a JDK) and Maven: java is missing"
