"""Faults that a test puts into a running program, at named points. They do nothing unless FAILPOINTS is set.

``FAILPOINTS`` names a file with one fault a line, ``<pattern> = <action>``. It is read again at every point, so that a
test can break a disk and mend it while the program runs. A pattern is the name of a point, or one with ``*`` in it.
Actions: ``crash`` (as kill -9), the name of an error of the operating system such as ``ENOSPC``, ``delay SECONDS``.
The names of passed points are appended to a file of the same name with ``.hits`` behind it.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

VARIABLE = "FAILPOINTS"


class Failpoints:
    """The points of this process, and the file with the faults at them. Safe to use from any thread."""

    def __init__(self, file: Path) -> None:
        """Touches nothing yet.

        Args:
            file: Holds the faults; nothing fails as long as it is missing.
        """
        self._file = file
        self._hits = file.with_name(f"{file.name}.hits")

    def hit(self, point: str) -> None:
        """The program has come to a point.

        Raises:
            OSError: The file says that this fails.
            ValueError: A line of the file is not a fault.
        """
        with self._hits.open("a", encoding="utf-8") as hits:
            hits.write(f"{point}\n")
        for pattern, action in self._faults():
            if fnmatchcase(point, pattern):
                _act(action)
                return

    def _faults(self) -> Iterator[tuple[str, str]]:
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            pattern, _, action = line.partition("=")
            yield pattern.strip(), action.strip()


def _act(action: str) -> None:
    kind, _, argument = action.partition(" ")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "delay":
        time.sleep(float(argument))
    elif isinstance(number := getattr(errno, kind, None), int):
        raise OSError(number, os.strerror(number))
    else:
        raise ValueError(f"{VARIABLE}: {action!r} is neither crash, nor the name of an error, nor delay SECONDS")


def _from_environment() -> Failpoints | None:
    file = os.environ.get(VARIABLE)
    return Failpoints(Path(file)) if file else None


FAILPOINTS = _from_environment()
"""None in normal use: then nothing here is ever called."""
