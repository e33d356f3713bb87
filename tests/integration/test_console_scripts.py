"""Each program answers under the name by which an operator calls it."""

from __future__ import annotations

import os
import subprocess
import tomllib

import pytest

from groundwork.version import __version__
from tests.support.pages import ROOT
from tests.support.programs.processes import BIN, NamesrvProcess

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


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
