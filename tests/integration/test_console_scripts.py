"""Each program answers under the name by which an operator calls it."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from namesrv_common.process.program import EXIT_NO_OUTPUT
from namesrv_common.version import __version__
from tests.support.pages import ROOT
from tests.support.programs.processes import BIN, NamesrvProcess

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
STANDING_FOR_ALL = ("namesrv", "nsctl")
"""One with settings as flags, and one with commands: ``run_program`` writes the output of all."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_program_answers_with_its_version(script: str) -> None:
    said = subprocess.run([BIN / script, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout.split()[-1:], said.stderr) == (0, [__version__], "")


@pytest.mark.parametrize("command", [("namesrv", "healthcheck", "--namesrv"), ("nsctl", "status", "--namesrv")])
def test_no_program_calls_a_name_server_through_a_proxy(namesrv: NamesrvProcess, command: tuple[str, ...]) -> None:
    script, *arguments = command
    said = subprocess.run(
        [BIN / script, *arguments, str(namesrv.endpoint)],
        env={**os.environ, "http_proxy": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("script", STANDING_FOR_ALL)
def test_help_is_shown_whatever_the_terminal_can_encode(script: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    words = ["serve", "--help"] if script in {"namesrv", "broker-agent"} else ["--help"]
    said = subprocess.run([BIN / script, *words], capture_output=True, timeout=60, check=False, env=environment)
    assert (said.returncode, said.stderr, b"--help" in said.stdout) == (0, b"", True)


@pytest.mark.parametrize("script", STANDING_FOR_ALL)
def test_output_that_the_disk_refuses_is_one_line(script: str) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [BIN / script, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    line = f"{script}: the output cannot be written: No space left on device\n"
    assert (said.returncode, said.stderr) == (EXIT_NO_OUTPUT, line)
