"""Java's own lines, which say why Spark did not start where Python only sees that Java has ended."""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import suppress
from typing import Self

MOST_BYTES = 65_536
"""Most bytes of Java's output that are kept for an error."""

_STANDARD_ERROR = 2
_CAUSE = re.compile(r'(?:Caused by: |Exception in thread "[^"]*" |Error: )(.+)')


class JavaLines:
    """Standard error of a Java that starts in the context: passed on line by line, and kept for an error.

    A Java that was started keeps its pipe, whose lines are passed on until this process ends.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._all_read = threading.Event()

    def __enter__(self) -> Self:
        sys.stderr.flush()
        self._before = os.dup(_STANDARD_ERROR)
        reading, writing = os.pipe()
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        threading.Thread(target=self._pass_on, args=(reading,), name="java-lines", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def cause(self) -> str:
        """Returns the line that names the cause, with a remedy if there is one; empty if no line does."""
        self._restore()
        self._all_read.wait(1.0)
        lines = [line.strip() for line in self._kept.decode(errors="replace").splitlines()]
        named = [found[1] for line in lines if (found := _CAUSE.match(line))]
        remedy = "" if _has_name() else f"; user id {os.getuid()} has no name, which Java needs: add it to /etc/passwd"
        return named[-1] + remedy if named else ""

    def _restore(self) -> None:
        sys.stderr.flush()
        os.dup2(self._before, _STANDARD_ERROR)

    def _pass_on(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as java:
            while piece := java.read(4_096):
                self._kept += piece[: MOST_BYTES - len(self._kept)]
                with suppress(OSError):
                    os.write(self._before, piece)
        self._all_read.set()


def _has_name() -> bool:
    import pwd  # noqa: PLC0415 - there is none on Windows

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
