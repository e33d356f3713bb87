"""The runbook's commands, in fleets that are in the state that each is for; and docs/states.md, which shows them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.tools.generate_states import OF_THE_MACHINE, PAGE, RUNBOOK, Told, examine, runbook_commands
from nsctl.cli import app
from nsctl.commands.findings import Code, Severity
from nsctl.session import FOUND, UNREACHABLE, USAGE, WARNED
from tests.support.fleet_states import STATES, State
from tests.support.programs.doctor import BUSY
from tests.support.scenes import Scene

pytestmark = pytest.mark.slow

TELLING = {
    "A master was killed": {
        "nsctl history --since 1h --cause CHANNEL_CLOSED": (0, "broker-a .* lost its channel"),
        "nsctl broker BROKER": (0, "CHANNEL_CLOSED +broker-a"),
        "nsctl explain TOPIC": (0, "no master is registered since"),
        "nsctl history BROKER": (0, "channel end .* broker-a"),
        "nsctl brokers": (0, r"DefaultCluster +broker-a +1 "),
        "nsctl agent role AGENT 0": (0, r"broker-a +1 +0 +done +2 +2"),
        "nsctl intents": (0, ""),
    },
    "A broker was killed beside its agent": {"nsctl agent status AGENT": (FOUND, "DOWN .* its broker is dead")},
    "A broker is silent": {
        "nsctl brokers --silent 30s": (0, r"DefaultCluster +broker-a +0 "),
        "nsctl drain BROKER": (0, "ns-a:9876 +done"),
        "nsctl restore BROKER": (0, "ns-a:9876 +done"),
    },
    "Drained and forgotten": {"nsctl drain BROKER --for 7d": (0, "ns-b:9876 +done")},
    "Forgotten intents are lifted": {
        "nsctl intents": (0, "drain .* alice"),
        "nsctl restore BROKER": (0, "ns-b:9876 +done"),
        "nsctl release-topic TOPIC": (0, "ns-b:9876 +done"),
    },
    "The certificate of an agent has ended": {
        "nsctl brokers BROKER": (0, ""),
        "nsctl agent status AGENT": (UNREACHABLE, "certificate"),
    },
    "Name servers disagree": {
        "nsctl diff": (FOUND, "DefaultCluster +broker-a .* not there"),
        "nsctl intents": (0, ""),
    },
    "A name server is down": {
        "nsctl status": (UNREACHABLE, "ns-b:9876 .* unreachable"),
        "nsctl agent status AGENT": (FOUND, "ns-b:9876 +no "),
        "nsctl diff": (UNREACHABLE, "ns-b:9876"),
    },
    "All name servers are down": {"nsctl agent status AGENT": (FOUND, "ns-a:9876 +no ")},
    "Many brokers were lost at once": {
        "nsctl brokers --unconfirmed": (0, r"DefaultCluster +broker-3 .* yes"),
        "nsctl status": (0, "guard holds brokers"),
        "nsctl guard confirm-loss": (0, "ns-a:9876 +done"),
    },
    "Restarted, and brokers have not come back": {
        "nsctl brokers --unconfirmed": (0, r"DefaultCluster +broker-a .* yes"),
        "nsctl brokers": (0, r"DefaultCluster +broker-a .* yes"),
        "nsctl agent status AGENT": (FOUND, "ns-old:9876 +no "),
    },
    "No broker is registered": {"nsctl history": (0, "REVISION")},
    "A broker has an address that clients cannot call": {"nsctl brokers": (0, r"broker-a +0 +127\.0\.0\.1")},
    "Two brokers have one id": {
        "nsctl history --cause REPLACED": (0, "was replaced; broker-a"),
        "nsctl history": (0, "was replaced; broker-a"),
    },
    "A watcher does not read": {"nsctl watchers": (0, r"WatchTopicRoutes .* [1-9][\d,]* +\S+Z$")},
    "The topics of a broker are broken": {"nsctl agent status AGENT": (0, "not JSON, or cut off")},
    "A disk is full": {"nsctl diff": (0, "no difference between 2 name servers")},
    "A clock is wrong": {"nsctl history": (0, "registered: new group")},
}
"""Exit code and a line of each command of the runbook, by state."""
MENDS = {
    "nsctl agent role AGENT 0": ("GROUP_WITHOUT_MASTER", "TOPICS_NOT_WRITABLE"),
    "nsctl drain BROKER --for 7d": ("INTENT_FORGOTTEN",),
    "nsctl restore BROKER": ("INTENT_FORGOTTEN", "TOPICS_NOT_WRITABLE"),
    "nsctl release-topic TOPIC": ("INTENT_IN_FORCE",),
    "nsctl guard confirm-loss": ("GUARD_HOLDS_BROKERS",),
}
"""Commands after which the doctor no longer finds something."""
TOLD_IN_OTHER_WORDS = (
    "A name server is down",
    "All name servers are down",
    "Many brokers were lost at once",
)
"""States in which the doctor repeats what gRPC says of a connection, or losses before the guard held the others: both
differ from time to time."""
ALERTS = tuple(re.findall(r"^### ([A-Z]\w+[a-z])$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.title)
def test_the_doctor_finds_the_state_and_the_runbooks_commands_show_it(state: State, tmp_path: Path) -> None:
    with state.enter(tmp_path) as scene:
        for command in of_the_machine(state):
            assert_done(scene.command(command))
        assert_more_is_shown(scene)
        doctor, *others = examine(state, scene)
        again = examine(State(state.title, (), state.enter), scene)[0]
    assert set(state.codes) <= codes_of(doctor)
    assert doctor.exit_code == exit_code_of(codes_of(doctor))
    telling = TELLING.get(state.title, {})
    assert {told.command for told in others} == telling.keys()
    for told in others:
        exit_code, line = telling[told.command]
        assert (told.exit_code, bool(re.search(line, told.output))) == (exit_code, True), told
        assert not codes_of(again).intersection(MENDS.get(told.command, ())), again
    if state.title == "Many brokers were lost at once":
        assert "BROKER_CAME_BACK" not in codes_of(doctor), "the guard keeps them; they are not back"
    if state.title == "Drained and forgotten":
        assert "disks)" in again.output, "the reason that was given first stays"
    shown = dict(sections())[state.title]
    if state.title in TOLD_IN_OTHER_WORDS:
        assert codes_of(doctor) <= {*re.findall(r"\b[A-Z_]+\b", shown[0]), "BROKER_LOST", BUSY}
    else:
        found = [told.block() for told in (doctor, *others)]
        first = 1 if BUSY in codes_of(doctor) and BUSY not in state.codes else 0
        assert words("".join(shown[first:])) == words("".join(found[first:]))


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


def sections() -> Iterator[tuple[str, list[str]]]:
    """Title and blocks of each state on the page."""
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        yield part.partition("\n")[0], re.findall(r"^```console\n.*?^```", part, re.MULTILINE | re.DOTALL)


def words(text: str) -> list[str]:
    """The words of a text, with numbers made one: findings of two name servers may stand in either order."""
    return sorted(re.sub(r"\d[\d,.]*", "0", text).replace("─", "").replace("```", " ").split())


def test_each_code_has_a_state() -> None:
    assert {Code[code] for state in STATES for code in state.codes} == set(Code)
    assert [title for title, _ in sections()] == [state.title for state in STATES]


def test_each_alert_whose_paragraph_names_a_command_has_a_state() -> None:
    entered = {alert for state in STATES for alert in state.alerts}
    assert entered <= set(ALERTS)
    assert {alert for alert in ALERTS if runbook_commands(alert, "nsctl", *OF_THE_MACHINE)} <= entered
