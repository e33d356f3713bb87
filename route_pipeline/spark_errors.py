"""One-line texts of Spark's errors, which are pages of Java and Python traces."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)
"""The errors that Spark raises in the driver when it or a job fails."""

_MAX_LENGTH = 500
_PY4J_PREFIX = "An error occurred while calling "
_CAUSE_PREFIX = "Caused by: "
# The line of a Python trace that names an error of ours, wherever it is inside the text of Java's.
_OURS = re.compile(r"^(?:\S*: )*route_pipeline\.[\w.]+: (.+)$", re.MULTILINE)


def one_line(error: BaseException) -> str:
    """The cause of a failed Spark job.

    It is the text of our own error if a task failed with one, else the innermost cause of a Java trace, else the
    first line of what Spark says.
    """
    text = str(error)
    ours = _OURS.search(text)
    if ours:
        return ours[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_PY4J_PREFIX):
        lines = [_innermost_cause(lines)]
    return lines[0].removeprefix(": ")[:_MAX_LENGTH] if lines else type(error).__name__


def _innermost_cause(trace: list[str]) -> str:
    """The last cause that a Java trace names, or else the exception that it begins with."""
    causes = [line.removeprefix(_CAUSE_PREFIX) for line in trace if line.startswith(_CAUSE_PREFIX)]
    return causes[-1] if causes else trace[1]
