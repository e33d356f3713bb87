#!/usr/bin/env python3
"""Writes docs/states.md: what nsctl says of a fleet in each state, and what the runbook's commands show there.

Starts fleets of its own on free ports of loopback, one after the other, and ends them.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.fleet_states import STATES, Scene, State
from tests.support.programs.processes import Process

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RUNBOOK = DOCS / "states.md", DOCS / "runbook.md"
HEAD = """\
<!-- Written by docs/tools/generate_states.py, which brings fleets into these states: edit that, not this. -->

# What nsctl says in each state

Real output: of `nsctl doctor` in a fleet that is well and in fleets that are not, and of the commands that the
[runbook](runbook.md) names for each finding. A test brings fleets into the same states.
"""
CHANGES_LAST = ("nsctl agent role", "nsctl drain", "nsctl guard", "nsctl unhold-topic", "nsctl undrain")
"""Commands that change the state: they come after those that only look."""
TERMINAL = {"COLUMNS": "160", "TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"}
"""Variables by which tables are as wide as those of a terminal."""
ESCAPES = r"\x1b\[[0-9;]*m"
"""What a terminal shows as bold."""


class Told(NamedTuple):
    """A command, and what it said."""

    command: str
    """As the runbook has it."""
    shown: str
    """As it was given, with public addresses."""
    exit_code: int
    output: str

    def block(self) -> str:
        """As the page shows it."""
        code = f"\n# exit code {self.exit_code}" if self.exit_code else ""
        return f"```console\n$ {self.shown}\n{self.output}{code}\n```"


def _commands(paragraph: str) -> list[str]:
    """The commands of nsctl that a paragraph of the runbook names."""
    (text,) = re.findall(rf"^### {paragraph}\n(.*?)(?=^##|\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"`(nsctl [^`]+)`", text)


def examine(state: State, scene: Scene) -> list[Told]:
    """What the doctor says, then what each command of the runbook shows."""
    commands = [command for paragraph in state.paragraphs for command in _commands(paragraph)]
    commands.sort(key=lambda command: command.startswith(CHANGES_LAST))
    return [_told(scene, command) for command in dict.fromkeys(["nsctl doctor", *commands])]


def _told(scene: Scene, command: str) -> Told:
    given = scene.command(command)
    arguments = shlex.split(given)[1:]
    whom = () if arguments[0] == "agent" else ("--namesrv", scene.namesrv)
    result = CliRunner().invoke(app, [*arguments, *whom, *scene.flags], env=TERMINAL)
    lines = [line.rstrip() for line in re.sub(ESCAPES, "", result.output).splitlines() if line.strip()]
    shown = " ".join([given, *(Path(flag).name for flag in scene.flags)])
    return Told(command, _public(scene, shown), result.exit_code, _public(scene, "\n".join(lines)))


def _public(scene: Scene, text: str) -> str:
    for address, name in scene.public.items():
        in_table = rf"{re.escape(address)}(?=  )"  # where the next column is aligned
        text = re.sub(in_table, name.ljust(len(address)), text).replace(address, name)
    return re.sub(r"ipv4:127\.0\.0\.1:\d+", "ipv4:10.0.0.99:40000", text)


def section(state: State) -> str:
    """A state's part of the page."""
    with TemporaryDirectory() as folder, state.enter(Path(folder)) as scene:
        told = examine(state, scene)
    links = ", ".join(f"[{code}](runbook.md#{code.lower()})" for code in state.paragraphs)
    about = " ".join(filter(None, [inspect.getdoc(state.enter), links and f"See {links}."]))
    return "\n\n".join([f"## {state.title}", about, *(each.block() for each in told)])


def main() -> None:
    """Makes the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    Process.are_forked = True
    PAGE.write_text("\n".join([HEAD, "\n\n".join(map(section, STATES)), ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
