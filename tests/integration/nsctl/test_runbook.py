"""The runbook's commands, in fleets that are in the state that each is for; and docs/states.md, which shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsctl.doctor.findings import Code, Severity
from nsctl.exit_codes import FOUND, WARNED
from support.fleet_states import STATES, State
from tools.generate_states import PAGE, Told, examine, runbook_commands

pytestmark = pytest.mark.slow

NOT_IN_A_STATE_HERE = {
    Code.BROKER_SILENT: "takes half of a broker's timeout, and the runbook's command asks for 30 s",
    Code.CLOCK_SKEW: "needs two clocks",
    Code.EVENT_LOOP_HELD_UP: "lasts for a minute after the stall",
    Code.NOT_ALLOWED: "names no command; tests/integration/security has callers with few permits",
    Code.VERSIONS_DIFFER: "needs the version before this one; names no command",
}
"""Codes of which no fleet is made, and why."""

TELLING = {
    "nsctl history --since 1h --cause CHANNEL_CLOSED": (0, "broker-a .* lost its channel"),
    "nsctl broker BROKER": (0, "CHANNEL_CLOSED +broker-a"),
    "nsctl explain TOPIC": (0, "no master is registered since"),
    "nsctl agent role AGENT 0": (0, r"broker-a +1 +0 +done +2 +2"),
    "nsctl drain BROKER --for 7d": (0, "ns-b:9876 +done"),
    "nsctl diff": (FOUND, "DefaultCluster +broker-a .* not there +11"),
    "nsctl brokers --unconfirmed": (0, r"DefaultCluster +broker-\S+ .* yes"),
    "nsctl status": (0, "ready, copy of ns-a:9876"),
}
"""Exit code and a line of each command of the runbook."""
MENDS = {
    "nsctl agent role AGENT 0": ("GROUP_WITHOUT_MASTER", "TOPICS_NOT_WRITABLE"),
    "nsctl drain BROKER --for 7d": ("DECISION_FORGOTTEN",),
}
"""Commands after which the doctor no longer finds something."""
TOLD_IN_OTHER_WORDS = ("A copy has lost its leader", "A name server is down", "Many brokers were lost at once")
"""States in which the doctor repeats what gRPC says of a connection, or losses before the guard held the others: both
differ from time to time."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_show_it(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        doctor, *others = examine(state, scene)
        again = examine(State(state.title, (), state.enter), scene)[0]
    assert set(state.codes) <= codes_of(doctor)
    assert doctor.exit_code == exit_code_of(codes_of(doctor))
    for told in others:
        exit_code, line = TELLING[told.command]
        assert (told.exit_code, bool(re.search(line, told.output))) == (exit_code, True), told
        assert not codes_of(again).intersection(MENDS.get(told.command, ())), again
    if state.title == "Many brokers were lost at once":
        assert "BROKER_CAME_BACK" not in codes_of(doctor), "the guard keeps them; they are not back"
    shown = dict(sections())[state.title]
    if state.title in TOLD_IN_OTHER_WORDS:
        assert codes_of(doctor) <= {*re.findall(r"\b[A-Z_]+\b", shown), "BROKER_LOST"}
    else:
        assert words(shown) == words("".join(told.block() for told in (doctor, *others)))


def codes_of(doctor: Told) -> set[str]:
    """What the doctor found."""
    return set(re.findall(r"[A-Z_]+", doctor.output)) & {code.name for code in Code}


def exit_code_of(codes: set[str]) -> int:
    """The exit code that the runbook promises."""
    worst = min((Code[code].severity for code in codes), default=Severity.INFO)
    return {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}[worst]


def sections() -> Iterator[tuple[str, str]]:
    """Title and blocks of each state on the page."""
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        yield part.partition("\n")[0], "".join(re.findall(r"^```console\n.*?^```", part, re.MULTILINE | re.DOTALL))


def words(text: str) -> list[str]:
    """The words of a text, with numbers made one: findings of two name servers may stand in either order."""
    return sorted(re.sub(r"\d[\d,.]*", "0", text).replace("─", "").replace("```", " ").split())


def test_each_code_has_a_state_or_a_reason_why_not() -> None:
    entered = {Code[code] for state in STATES for code in state.codes}
    assert entered | NOT_IN_A_STATE_HERE.keys() == set(Code)
    assert entered & NOT_IN_A_STATE_HERE.keys() == set()
    assert [title for title, _ in sections()] == [state.title for state in STATES]


def test_each_command_of_the_runbook_is_one_that_is_run() -> None:
    named = {command for code in Code if code not in NOT_IN_A_STATE_HERE for command in runbook_commands(code.name)}
    assert named == TELLING.keys()
