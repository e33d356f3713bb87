"""The Python that Spark's workers run. It plans and reads the format ``namesrv``, and need not be the driver's.

Unless PYSPARK_PYTHON says otherwise when the session is made, it is the first ``python3`` of the PATH. In a notebook,
or under ``path/to/.venv/bin/python script.py``, that is another one, and Spark would fail with pages of Java.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_NEEDED = ("route_pipeline", "grpc", "pyarrow", "pydantic")
_PROBE = f"import importlib.util as u; print(*(name for name in {_NEEDED} if u.find_spec(name) is None), sep=', ')"
_SECONDS = 30.0
_ARCHIVES = (".zip", ".egg")


class WorkerPythonError(RuntimeError):
    """Spark's workers run a Python that cannot read the format; the text is one line and says what to set."""


def check_worker_python(python: str) -> None:
    """Checks that a Python, a path or a name on the PATH, has what the format needs, unless it is this one.

    Raises:
        WorkerPythonError: It is not there, or lacks a package.
    """
    # A package that Spark ships as --py-files is only found by its workers.
    shipped = any(parent.suffix in _ARCHIVES for parent in Path(__file__).parents)
    found = shutil.which(python)
    if shipped or found == sys.executable:
        return
    problem = "is not there"
    if found is not None:
        try:
            answer = subprocess.run([found, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603
            missing = answer.stdout.strip()
            problem = f"has no {missing}" if missing else ""
        except (OSError, subprocess.SubprocessError):
            problem = "cannot be started"
    if problem:
        raise WorkerPythonError(
            f"Spark's Python workers run {python!r}, which {problem}: make the session by "
            "route_pipeline.spark_session(), or set os.environ['PYSPARK_PYTHON'] = sys.executable before it is made"
        )
