"""What a contributor's tools read: the hooks before a commit, and the container to develop in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.interop.programs import OLDEST_GO, OLDEST_JAVA
from tests.support.pages import code_blocks
from tests.unit.deploy.files import ROOT, document

BIN = Path(sys.executable).parent
DEVCONTAINER: dict[str, Any] = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
HOOKS: list[dict[str, Any]] = document(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


def feature(name: str) -> dict[str, str]:
    """The options of one thing that the container has beside its image."""
    (options,) = [options for key, options in DEVCONTAINER["features"].items() if f"/{name}:" in key]
    return dict(options)


def test_what_runs_before_a_commit_is_what_make_lint_runs() -> None:
    assert recipe("lint")[-1].endswith(" lint-engine lint-python lint-prose")
    commands = recipe("lint-python") + recipe("lint-engine") + recipe("lint-prose")
    assert [hook["entry"] for hook in HOOKS] == commands


def test_pre_commit_takes_its_configuration() -> None:
    checked = subprocess.run(
        [BIN / "pre-commit", "validate-config", ROOT / ".pre-commit-config.yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: str(hook["id"]))
def test_a_hook_runs_for_a_change_of_some_file_that_is_there(hook: dict[str, Any]) -> None:
    tracked = (
        "pyproject.toml",
        "protos/buf.yaml",
        "docs/clients.md",
        "namesrv/cli.py",
        "engine/src/lib.rs",
        "README.md",
    )
    assert all((ROOT / path).is_file() for path in tracked)
    concerned = [path for path in tracked if re.search(hook["files"], path)]
    assert concerned
    assert ("README.md" in concerned) == (hook["id"] == "prose")


def test_the_container_has_the_oldest_python_that_is_promised_and_the_tools_of_foreign_clients() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"python:{project['requires-python'].removeprefix('>=')}-" in DEVCONTAINER["image"]
    assert tuple(map(int, feature("go")["version"].split("."))) >= OLDEST_GO
    assert (int(feature("java")["version"]),) >= OLDEST_JAVA
    assert feature("java")["installMaven"] == "true"
    assert feature("node")


def test_the_container_is_ready_for_the_two_commands_of_the_readme() -> None:
    (block,) = code_blocks("README.md", "console", section="Demo and tests")
    commands = re.findall(r"^\$ make (\S+)", block, re.MULTILINE)
    assert len(commands) == 2
    assert DEVCONTAINER["postCreateCommand"].endswith(" && make setup")
    for command in commands:
        assert re.search(rf"^{command}: setup ", (ROOT / "Makefile").read_text(), re.MULTILINE), "begins with it"


def test_the_container_keeps_its_virtual_environment_to_itself() -> None:
    (mount,) = DEVCONTAINER["mounts"]
    assert "target=${containerWorkspaceFolder}/.venv,type=volume" in mount
    interpreter = DEVCONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter == "${containerWorkspaceFolder}/.venv/bin/python"
