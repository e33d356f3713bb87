"""What the doctor finds in a fleet in each state, and the commands of nsctl that the runbook has for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools.generate_states import examine
from nsctl.commands.findings import Code, Severity
from nsctl.session import FOUND, USAGE, WARNED
from tests.support.fleet_states import STATES, State

pytestmark = pytest.mark.slow

EXIT_CODES = {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_run(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        doctor, *others = examine(state, scene)
    found = set(re.findall(r"[A-Z_]+", doctor.output)) & {code.name for code in Code}
    assert set(state.codes) <= found
    assert doctor.exit_code == EXIT_CODES[min((Code[code].severity for code in found), default=Severity.INFO)]
    assert [told for told in others if told.exit_code == USAGE] == []


def test_each_code_has_a_state() -> None:
    assert {Code[code] for state in STATES for code in state.codes} == set(Code)
