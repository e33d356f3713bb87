"""Programs of ours that are forked from a process which has imported them, and look like those of ``subprocess``."""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tests.support.programs.fork_server import PRELOADED

_START_SECONDS = 60.0
"""How long the imports may take, on a busy machine."""


class ForkedProgram:
    """A running program: the part of ``subprocess.Popen`` that tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | str | None = None,
        output: int | None = None,
    ) -> None:
        """Starts it. Its standard error is ``stderr``, a pipe.

        Args:
            arguments: The program and its arguments.
            environment: All its variables.
            folder: Where it runs, or None for where the tests do.
            output: A descriptor for its standard output, or None for that of the tests.
        """
        read, write = os.pipe()
        self.stderr: TextIO = os.fdopen(read)
        self.returncode: int | None = None
        self._told, telling = socket.socketpair()
        request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder or Path.cwd())}
        descriptors = array.array("i", [telling.fileno(), write, *([] if output is None else [output])])
        _server().sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        telling.close()
        os.close(write)
        self._told.settimeout(_START_SECONDS)
        self._lines = self._told.makefile("r")
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._told.close()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Waits for its end; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after the time, in seconds.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if not select.select([self._told], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            # Its end is told a moment after the process has ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.send_signal(signal.SIGKILL)


def can_fork(arguments: Sequence[str]) -> bool:
    """Whether the program is one of those that are imported beforehand, and not of another installation."""
    program = Path(arguments[0])
    return program.name in PRELOADED and program.parent == Path(sys.executable).parent


@functools.cache
def _server() -> socket.socket:
    """The process that forks, one for all tests of this process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_START_SECONDS)
    command = [sys.executable, "-m", "tests.support.programs.fork_server", *PRELOADED]
    process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=Path(__file__).parents[3])
    theirs.close()

    @atexit.register
    def _end() -> None:
        ours.close()
        process.wait(_START_SECONDS)

    return ours
