"""The scripts that build and check the native engine, where there is a cargo, an old one, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.files import ROOT

NEEDED = ("sh", "sed", "dirname", "basename")
"""All that the scripts find beside cargo and pip."""


class Machine:
    """A machine with a few programs, of which cargo and pip only say what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in NEEDED:
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)
        self.program("pip", 'echo "pip $*"; echo "$PWD" >"$(dirname "$0")/pip.folder"')

    def program(self, name: str, commands: str) -> None:
        """Adds a program."""
        (self.folder / name).write_text(f"#!/bin/sh\n{commands}\n")
        (self.folder / name).chmod(0o755)

    def run(self, script: str, **variables: str) -> tuple[str, str]:
        """Runs a script of the engine, which succeeds; what it says, and what it complains of."""
        arguments = [str(self.folder / "pip")] if script == "install.sh" else []
        done = subprocess.run(
            [str(self.folder / "sh"), str(ROOT / "engine" / script), *arguments],
            env={"PATH": str(self.folder), **variables}, cwd=ROOT, check=True,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", [None, "cargo 1.84.1 (66221abde 2024-11-19)", "cargo 0.99.0"])
def test_without_a_new_cargo_one_line_says_that_grpcio_serves(machine: Machine, version: str | None) -> None:
    if version is not None:
        machine.program("cargo", f"echo '{version}'")
    said, complained = machine.run("install.sh")
    assert said.startswith("engine: no cargo 1.85 or later was found, so grpcio serves; ")
    assert "ENGINE_WHEEL=" in said
    assert (said.count("\n"), complained) == (1, "")
    assert not (machine.folder / "pip.folder").exists()


@pytest.mark.parametrize("version", ["cargo 1.85.0 (d73d2caf9 2024-12-31)", "cargo 2.0.1"])
def test_with_a_new_cargo_pip_builds_the_engine(machine: Machine, version: str) -> None:
    machine.program("cargo", f"echo '{version}'")
    said, _ = machine.run("install.sh")
    assert (machine.folder / "pip.folder").read_text().strip() == os.fspath(ROOT / "engine")
    assert said.splitlines()[-1].startswith("engine: the native engine is installed")


def test_a_build_that_fails_is_shown_and_is_not_the_end_of_the_set_up(machine: Machine) -> None:
    machine.program("cargo", "echo cargo 1.95.0")
    machine.program("pip", "echo no linker; exit 1")
    said, complained = machine.run("install.sh")
    assert said.count("\n") == 1, "only that it builds"
    assert complained.splitlines()[0] == "no linker"
    assert "so grpcio serves" in complained.splitlines()[-1]


def test_a_wheel_is_installed_without_cargo(machine: Machine) -> None:
    said, _ = machine.run("install.sh", ENGINE_WHEEL="dist/some.whl")
    assert (machine.folder / "pip.folder").read_text().strip() == os.fspath(ROOT)
    assert said.splitlines()[0].startswith("pip install ")
    assert said.splitlines()[0].endswith(" dist/some.whl")


@pytest.mark.parametrize("cargo", [None, 'case "$1" in --version) echo cargo 1.90.0 ;; *) exit 101 ;; esac'])
def test_the_check_of_the_engine_says_that_it_is_skipped(machine: Machine, cargo: str | None) -> None:
    if cargo is not None:
        machine.program("cargo", cargo)  # without clippy
    said, complained = machine.run("lint.sh")
    assert said.startswith("engine: skipped: ")
    assert (said.count("\n"), complained) == (1, "")
