"""The runbook's commands, in fleets that are in the state that each is for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.tools.generate_states import OF_THE_MACHINE, RUNBOOK, Told, examine, runbook_commands
from nsctl.cli import app
from nsctl.commands.findings import Code, Severity
from nsctl.session import FOUND, USAGE, WARNED
from tests.support.fleet_states import STATES, Scene, State

pytestmark = pytest.mark.slow

MENDS = {
    "nsctl agent role AGENT 0": ("GROUP_WITHOUT_MASTER", "TOPICS_NOT_WRITABLE"),
    "nsctl drain BROKER --for 7d": ("INTENT_FORGOTTEN",),
    "nsctl restore BROKER": ("INTENT_FORGOTTEN", "TOPICS_NOT_WRITABLE"),
    "nsctl release-topic TOPIC": ("INTENT_IN_FORCE",),
    "nsctl guard confirm-loss": ("GUARD_HOLDS_BROKERS",),
}
"""Commands after which the doctor no longer finds something."""
ALERTS = tuple(re.findall(r"^### ([A-Z]\w+[a-z])$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_run(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        for command in of_the_machine(state):
            assert_done(scene.command(command))
        assert_more_is_shown(scene)
        doctor, *others = examine(state, scene)
        again = examine(State(state.title, (), state.enter), scene)[0]
    assert set(state.codes) <= codes_of(doctor)
    assert doctor.exit_code == exit_code_of(codes_of(doctor))
    for told in others:
        assert told.exit_code != USAGE, told
        assert not codes_of(again).intersection(MENDS.get(told.command, ())), again


def of_the_machine(state: State) -> list[str]:
    """The commands of other programs than ours that the runbook names for a state."""
    return [each for paragraph in state.paragraphs for each in runbook_commands(paragraph, *OF_THE_MACHINE)]


def assert_done(command: str) -> None:
    """A command of the machine succeeds, as typed into a shell."""
    if shutil.which(command.split(maxsplit=1)[0]) is None and not command.startswith("kill "):
        pytest.skip(f"this machine has no {command.split(maxsplit=1)[0]}")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), command


def assert_more_is_shown(scene: Scene) -> None:
    """The command that each finding names for more is one, and shows something."""
    flags = ("--namesrv", scene.namesrv, *scene.flags)
    found = CliRunner().invoke(app, ["doctor", "-o", "json", *flags])
    for more in {row["more"] for row in json.loads(found.stdout)}:
        shown = CliRunner().invoke(app, [*shlex.split(more)[1:], *flags])
        assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.exception
        assert shown.exit_code != USAGE, shown.output
        assert shown.output, more


def codes_of(doctor: Told) -> set[str]:
    """What the doctor found."""
    return set(re.findall(r"[A-Z_]+", doctor.output)) & {code.name for code in Code}


def exit_code_of(codes: set[str]) -> int:
    """The exit code that the runbook promises."""
    worst = min((Code[code].severity for code in codes), default=Severity.INFO)
    return {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}[worst]


def test_each_code_has_a_state() -> None:
    assert {Code[code] for state in STATES for code in state.codes} == set(Code)


def test_each_alert_whose_paragraph_names_a_command_has_a_state() -> None:
    entered = {alert for state in STATES for alert in state.alerts}
    assert entered <= set(ALERTS)
    assert {alert for alert in ALERTS if runbook_commands(alert, "nsctl", *OF_THE_MACHINE)} <= entered
