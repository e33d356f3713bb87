"""Errors in one line: Spark's own, which are pages of Java and Python traces, and the pipeline's that Spark shows."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JError)
"""The errors that Spark raises in the driver when it or a job fails."""

_MAX_LENGTH = 500
# The line of a Python trace that names an error of the pipeline, wherever it is inside the text of Java's.
_OURS = re.compile(r"^(?:\S*: )*route_pipeline\.[\w.]+: (.+)$", re.MULTILINE)


def one_line(error: BaseException) -> str:
    """The cause of a failed Spark job: the pipeline's own error if a task failed with one, else Spark's first line."""
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1].strip()
    return text.strip().partition("\n")[0][:_MAX_LENGTH] or type(error).__name__


@contextmanager
def text_first(*kinds: type[Exception]) -> Iterator[None]:
    """Has Spark begin with the text of an error of these kinds, and end with its traceback.

    A worker of Spark reports the traceback, and the text is its last line. If it is told to hide the traceback, it
    reports the text and the notes of the error. The traceback is then such a note. The worker ends afterwards.
    """
    try:
        yield
    except kinds as error:
        if _is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            error.add_note(f"\n{''.join(traceback.format_exception(error, chain=False)).rstrip()}")
        raise


def _is_worker() -> bool:
    """Whether this process is one of Spark's Python workers, and not a program that uses Spark."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")
