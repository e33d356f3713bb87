"""A program that takes steps on all owned files, each time in a process of its own, which a failpoint may crash.

It reads folders, a line each, and forks for each of them: that is a hundred times faster than another start of Python.
It prints ``<kind>: <number>`` for each step that is done, and ``ended <wait status>``.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import structlog

from tests.faults.owned_files import OWNED


def _print(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _take_steps(folder: Path) -> None:
    for kind, step in OWNED.items():
        _print(f"{kind}: {step(folder)}")


def main() -> None:
    """Runs until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _take_steps(Path(line.strip()))
            except BaseException:  # noqa: BLE001 - the boundary of a process
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()
