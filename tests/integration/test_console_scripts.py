"""Each program answers under the name by which an operator calls it."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import TextIO

import pytest

from namesrv_common.process.program import EXIT_NO_OUTPUT
from namesrv_common.version import __version__
from tests.support.pages import ROOT
from tests.support.programs.processes import BIN, NamesrvProcess

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
STANDING_FOR_ALL = ("namesrv", "nsctl")
"""One with settings as flags, and one with commands: ``run_program`` writes the output of all."""


def said(
    script: str, *arguments: str, stdout: int | TextIO = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a program says in an environment with some variables."""
    return subprocess.run(
        [BIN / script, *arguments], env={**os.environ, **variables}, stdout=stdout, stderr=subprocess.PIPE,
        text=True, errors="replace", timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_program_answers_with_its_version(script: str) -> None:
    told = said(script, "--version")
    assert (told.returncode, told.stdout.split()[-1:], told.stderr) == (0, [__version__], "")


@pytest.mark.parametrize("command", [("namesrv", "healthcheck", "--namesrv"), ("nsctl", "status", "--namesrv")])
def test_no_program_calls_a_name_server_through_a_proxy(namesrv: NamesrvProcess, command: tuple[str, ...]) -> None:
    told = said(*command, str(namesrv.endpoint), http_proxy="http://127.0.0.1:1")
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("script", STANDING_FOR_ALL)
def test_help_is_shown_whatever_the_terminal_can_encode(script: str) -> None:
    words = ["serve", "--help"] if script == "namesrv" else ["--help"]
    told = said(script, *words, PYTHONIOENCODING="latin-1")
    assert (told.returncode, told.stderr, "--help" in told.stdout) == (0, "", True)


@pytest.mark.parametrize("script", STANDING_FOR_ALL)
def test_output_that_the_disk_refuses_is_one_line(script: str) -> None:
    with Path("/dev/full").open("w") as full:
        told = said(script, "--help", stdout=full)
    line = f"{script}: the output cannot be written: No space left on device\n"
    assert (told.returncode, told.stderr) == (EXIT_NO_OUTPUT, line)
