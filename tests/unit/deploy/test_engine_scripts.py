"""The scripts that build and check the native engine, where there is a cargo, an old one, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.release.engine_wheel import TOOLS
from tests.unit.deploy.files import ROOT

NEEDED = ("sh", "sed", "dirname", "basename", "rm", "mkdir", "cp", "touch", "find", "head")
"""All that the scripts find beside cargo, pip and python."""


class Machine:
    """A machine with a few programs, of which cargo and pip only say what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in NEEDED:
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)
        self.engine = folder / "engine"
        self.wheels = self.engine / "target/wheels"
        self.wheels.mkdir(parents=True)
        for script in (ROOT / "engine").glob("*.sh"):
            shutil.copy(script, self.engine)
        for source in ("src/lib.rs", "vendor/h2/src/lib.rs"):
            (self.engine / source).parent.mkdir(parents=True)
            (self.engine / source).touch()
        for source in ("Cargo.toml", "Cargo.lock", "pyproject.toml"):
            (self.engine / source).touch()
        self.program("pip", 'echo "pip $*" >>"$(dirname "$0")/asked"; echo "$PWD" >>"$(dirname "$0")/asked"')

    def program(self, name: str, commands: str) -> None:
        """Adds a program."""
        (self.folder / name).write_text(f"#!/bin/sh\n{commands}\n")
        (self.folder / name).chmod(0o755)

    @property
    def asked(self) -> list[str]:
        """What pip was asked for, and in which folder."""
        there = self.folder / "asked"
        return there.read_text().splitlines() if there.exists() else []

    def run(self, script: str, **variables: str) -> tuple[str, str]:
        """Runs a script of the engine, which succeeds; what it says, and what it complains of."""
        arguments = [] if script == "lint.sh" else [str(self.folder / "pip")]
        done = subprocess.run(
            [str(self.folder / "sh"), str(self.engine / script), *arguments],
            env={"PATH": str(self.folder), **variables}, cwd=self.engine.parent, check=True,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", [None, "cargo 1.84.1 (66221abde 2024-11-19)", "cargo 0.99.0"])
def test_without_a_new_cargo_one_line_says_what_is_missing(machine: Machine, version: str | None) -> None:
    if version is not None:
        machine.program("cargo", f"echo '{version}'")
    said, complained = machine.run("build.sh")
    assert said.startswith("engine: no cargo 1.85 or later was found, so the native engine is missing: ")
    assert "ENGINE_WHEEL=" in said
    assert (said.count("\n"), complained) == (1, "")
    assert machine.run("install.sh") == ("", "")
    assert machine.asked == []


@pytest.mark.parametrize("version", ["cargo 1.85.0 (d73d2caf9 2024-12-31)", "cargo 2.0.1"])
def test_with_a_new_cargo_pip_builds_the_engine_in_place_of_an_older_build(machine: Machine, version: str) -> None:
    machine.program("cargo", f"echo '{version}'")
    older = machine.wheels / "namesrv_engine-0.0.9-abi3.whl"
    older.touch()
    os.utime(older, (0, 0))
    machine.run("build.sh")
    asked, folder = machine.asked
    assert asked == "pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir target/wheels ."
    assert folder == os.fspath(machine.engine)
    assert list(machine.wheels.iterdir()) == []


def test_a_wheel_that_is_newer_than_the_sources_is_not_built_again(machine: Machine) -> None:
    machine.program("cargo", "echo cargo 1.95.0")
    for source in (machine.engine / "src", *machine.engine.glob("*.toml"), *machine.engine.glob("src/*")):
        os.utime(source, (0, 0))
    os.utime(machine.engine / "Cargo.lock", (0, 0))
    wheel = machine.wheels / "namesrv_engine-0.2.0-abi3.whl"
    wheel.touch()
    assert machine.run("build.sh") == ("", "")
    assert machine.asked == []
    assert wheel.exists()


def test_the_wheel_of_releases_is_built_where_it_is_asked_for_and_installed(machine: Machine) -> None:
    machine.program("cargo", "echo cargo 1.95.0")
    wheel = "namesrv_engine-0.2.0-manylinux.whl"
    machine.program("python", f'test "$*" = "-m deploy.release.engine_wheel" && mkdir -p dist && touch dist/{wheel}')
    machine.run("build.sh", ENGINE_BUILD="released")
    assert (machine.folder / "dist" / wheel).exists()
    assert machine.asked == []
    machine.run("install.sh")
    assert machine.asked[0].endswith(f" {machine.wheels / wheel}")


def test_the_maturin_of_releases_is_one_that_a_set_up_may_take() -> None:
    with (ROOT / "engine/pyproject.toml").open("rb") as file:
        (required,) = map(Requirement, tomllib.load(file)["build-system"]["requires"])
    (pinned,) = (tool for tool in map(Requirement, TOOLS) if tool.name == required.name)
    (version,) = pinned.specifier
    assert required.specifier.contains(version.version)


def test_what_was_built_is_installed(machine: Machine) -> None:
    wheel = machine.wheels / "namesrv_engine-0.2.0-abi3.whl"
    wheel.touch()
    said, _ = machine.run("install.sh")
    assert said.startswith(f"engine: the native engine is installed from {wheel}")
    assert machine.asked[0].endswith(f" {wheel}")


def test_a_build_that_fails_is_shown_and_is_not_the_end_of_the_set_up(machine: Machine) -> None:
    machine.program("cargo", "echo cargo 1.95.0")
    machine.program("pip", "echo no linker; exit 1")
    said, complained = machine.run("build.sh")
    assert said.count("\n") == 1, "only that it builds"
    assert complained.splitlines()[0] == "no linker"
    assert "--engine development alone" in complained.splitlines()[-1]
    assert machine.run("install.sh") == ("", "")


def test_a_wheel_is_installed_without_cargo(machine: Machine) -> None:
    assert machine.run("build.sh", ENGINE_WHEEL="dist/some.whl") == ("", "")
    said, _ = machine.run("install.sh", ENGINE_WHEEL="dist/some.whl")
    assert said.startswith("engine: the native engine is installed from dist/some.whl")
    asked, folder = machine.asked
    assert asked.startswith("pip install ")
    assert asked.endswith(" dist/some.whl")
    assert folder == os.fspath(machine.engine.parent)


@pytest.mark.parametrize("cargo", [None, 'case "$1" in --version) echo cargo 1.90.0 ;; *) exit 101 ;; esac'])
def test_the_check_of_the_engine_says_that_it_is_skipped(machine: Machine, cargo: str | None) -> None:
    if cargo is not None:
        machine.program("cargo", cargo)  # without clippy
    said, complained = machine.run("lint.sh")
    assert said.startswith("engine: skipped: ")
    assert (said.count("\n"), complained) == (1, "")
