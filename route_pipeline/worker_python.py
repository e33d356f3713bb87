"""The Python that Spark's workers run. It plans and reads the format ``namesrv``, and need not be the driver's.

Unless PYSPARK_PYTHON says otherwise when the session is made, it is the first ``python3`` of the PATH. In a notebook,
or under ``path/to/.venv/bin/python script.py``, that is another one, and Spark would fail with pages of Java.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEEDED = ("route_pipeline", "grpc", "pyarrow", "pydantic")
_PROBE = f"import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, {_NEEDED}))"
_ARCHIVES = (".zip", ".egg")


def check_worker_python(python: str) -> None:
    """Checks that a Python, a path or a name on the PATH, has what the format needs. Raises RuntimeError."""
    if any(parent.suffix in _ARCHIVES for parent in Path(__file__).parents):
        return  # shipped as --py-files, which only Spark's workers find
    try:
        subprocess.run([python, "-c", _PROBE], capture_output=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        raise RuntimeError(
            f"Spark's Python workers run {python!r}, which does not start or lacks {', '.join(_NEEDED)}: "
            "make the session by route_pipeline.spark_session(), "
            "or set os.environ['PYSPARK_PYTHON'] = sys.executable before it is made"
        ) from None
