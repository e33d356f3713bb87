"""Faults that a test puts into a program at named steps on files: before, in the middle of and after each.

A point is called ``<moment> <step> <name of the file>``: ``before fsync routes.snapshot.tmp``. A write has a point in
the middle, too: a disk that runs full takes a part first. ``install`` wraps the functions of
``namesrv_common.files.disk`` and those that SQLite reaches the disk with, and ``environment`` has a program do so at
its start.

The file of faults has one fault a line, ``<pattern> = <action>``. It is read again at every point, so that a test can
break a disk and repair it while the program runs. A pattern is the name of a point, or one with ``*`` in it.
Actions: ``crash`` (as kill -9), the name of an error of the operating system such as ``ENOSPC``, ``delay SECONDS``.
The names of passed points are appended to a file of the same name with ``.hits`` behind it.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from namesrv_common.files import disk
from tests.support.failpoints import sqlite
from tests.support.failpoints.sqlite import Hit
from tests.support.fakes import odd_program

VARIABLE = "FAILPOINTS"
ROOT = Path(__file__).parents[3]
STEPS = {
    "open_new": ("open", 0),
    "write": ("write", 0),
    "sync": ("fsync", 0),
    "rename": ("rename", 1),
    "link": ("link", 1),
    "remove": ("remove", 0),
    "sync_folder_of": ("fsync-folder-of", 0),
}
"""Functions of ``namesrv_common.files.disk``: the name of their points, and which argument is the file or its path."""


def hit(faults: Path, point: str) -> None:
    """A program has come to a point. Safe to use from any thread; nothing fails as long as the file is missing.

    Raises:
        OSError: The file says that this fails.
        ValueError: A line of the file is not a fault.
    """
    with faults.with_name(f"{faults.name}.hits").open("a", encoding="utf-8") as hits:
        hits.write(f"{point}\n")
    lines = faults.read_text(encoding="utf-8").splitlines() if faults.exists() else []
    for pattern, _, action in (line.partition("=") for line in lines):
        if fnmatchcase(point, pattern.strip()):
            _act(action.strip())
            return


def environment(faults: Path) -> dict[str, str]:
    """What a program gets in its environment to meet the faults of a file."""
    return {
        VARIABLE: str(faults),
        "PYTHONPATH": f"{Path(odd_program.__file__).parent}{os.pathsep}{ROOT}{os.pathsep}{ROOT / 'gen'}",
    }


def install(faults: Path) -> None:
    """Wraps the steps of this process for its whole life."""
    come_to = functools.partial(hit, faults)
    sqlite.install(come_to)
    in_halves = functools.partial(_write_in_halves, come_to, disk.write)
    for name, (step, which) in STEPS.items():
        function = in_halves if name == "write" else getattr(disk, name)
        setattr(disk, name, _between_points(come_to, step, which, function))


def _between_points(come_to: Hit, step: str, which: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def take(*arguments: Any) -> Any:
        name = _name(arguments[which])
        come_to(f"before {step} {name}")
        taken = function(*arguments)
        come_to(f"after {step} {name}")
        return taken

    return take


def _name(file: Path | IO[bytes]) -> str:
    path = file if isinstance(file, Path) else Path(f"/proc/self/fd/{file.fileno()}").readlink()
    return path.name


def _write_in_halves(come_to: Hit, write: Callable[..., int], stream: IO[bytes], content: bytes) -> int:
    half = len(content) // 2
    taken = write(stream, content[:half])
    stream.flush()
    come_to(f"half write {_name(stream)}")
    return taken + write(stream, content[half:]) if taken == half else taken


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
