"""Errors whose text comes before their traceback where Spark shows them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_HIDE = "SPARK_HIDE_TRACEBACK"
"""Variable that a worker of Spark looks at when it reports an error; it ends afterwards."""


@contextmanager
def text_first(*kinds: type[Exception]) -> Iterator[None]:
    """Has Spark begin with the text of an error of these kinds, and end with its traceback.

    A worker of Spark reports the traceback, and the text is its last line. If it is told to hide the traceback, it
    reports the text and the notes of the error. The traceback is then such a note.
    """
    try:
        yield
    except kinds as error:
        if _is_worker():
            os.environ[_HIDE] = "1"
            error.add_note(f"\n{''.join(traceback.format_exception(error, chain=False)).rstrip()}")
        raise


def _is_worker() -> bool:
    """Whether this process is one of Spark's Python workers, and not a program that uses Spark."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name.startswith("pyspark.")
