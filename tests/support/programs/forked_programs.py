"""Programs of ours that are forked from a process which has imported them, and look like those of ``subprocess``.

Tests start a thousand programs. The imports of each took half a second of processor time, most of what such a test
costs. A forked one is a process of its own as any other: pid, signals, descriptors, exit code. The process that forks
is ``python -m tests.support.programs.forked_programs``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from tests.support.patience import TIMEOUT
from tests.support.promised_errors import fail_where_others_are_sent

PRELOADED = {
    "namesrv": ("namesrv.__main__", "namesrv.cli", "namesrv.server.server", "namesrv.engines.native"),
    "broker-agent": ("broker_agent.__main__", "broker_agent.cli"),
    "nsctl": ("nsctl.__main__", "nsctl.cli", "nsctl.console.app"),
}
"""What each program imports until it serves. What is missing here, or is not installed, it imports itself."""

MAX_REQUEST_BYTES = 1 << 20


def serve(requests: socket.socket) -> Callable[[], None] | None:
    """Forks programs, and tells the exit codes of those that have ended, until its input ends.

    Returns:
        In a forked process: its program's ``main``, to be called last, so that the interpreter ends as it always does.
        In the server: None.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 2)
        if not data:
            return None
        request = json.loads(data)
        if isinstance(request, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                requests.detach()  # standard input, which gets another meaning below
                return _become(request, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        requests.send(b"%d" % answer)


def _become(request: dict[str, Any], errors: int, output: int = 1) -> Callable[[], None]:
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor, place in ((errors, 2), (output, 1)):
        if descriptor != place:
            os.dup2(descriptor, place)
            os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    sys.modules["__main__"].__package__ = None  # by which command lines see `python -m`
    cli = importlib.import_module(PRELOADED[Path(sys.argv[0]).name][0])
    main: Callable[[], None] = cli.main
    return main


_START_SECONDS = 3 * TIMEOUT
"""How long the imports may take, on a busy machine."""


class ForkedProgram:
    """A running program: the part of ``subprocess.Popen`` that tests need."""

    def __init__(self, arguments: Sequence[str], output: int | None = None) -> None:
        """Starts it. Its standard error is ``stderr``, a pipe.

        Args:
            arguments: The program and its arguments.
            output: A descriptor for its standard output, or None for that of the tests.
        """
        read, write = os.pipe()
        self.stderr: TextIO = os.fdopen(read)
        self.returncode: int | None = None
        request = {"arguments": list(arguments), "environment": dict(os.environ), "folder": str(Path.cwd())}
        self.pid = _ask(request, [write, *([] if output is None else [output])])
        os.close(write)
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        with _ASKING:
            if self.returncode is None and select.select([self._end], [], [], 0)[0]:
                self.returncode = _ask(self.pid)
                os.close(self._end)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Waits for its end; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after the time, in seconds.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if not select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)


def can_fork(arguments: Sequence[str]) -> bool:
    """Whether the program is one of those that are imported beforehand, and not of another installation."""
    program = Path(arguments[0])
    return program.name in PRELOADED and program.parent == Path(sys.executable).parent


_ASKING = threading.RLock()


def _ask(request: dict[str, Any] | int, descriptors: Sequence[int] = ()) -> int:
    """Starts a program and returns its pid; or returns the exit code of the program of a pid, which has ended."""
    with _ASKING:
        socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        return int(_server().recv(32))


@functools.cache
def _server() -> socket.socket:
    """The process that forks, one for all tests of this process; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_START_SECONDS)
    command = [sys.executable, "-m", "tests.support.programs.forked_programs"]
    process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=Path(__file__).parents[3])
    theirs.close()

    @atexit.register
    def _end() -> None:
        ours.close()
        process.wait(_START_SECONDS)

    return ours


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in itertools.chain.from_iterable(PRELOADED.values()):
        # Without an extra that is not installed, the program says so when it needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    fail_where_others_are_sent()
    # A thread of an import would be missing in every forked process.
    assert threading.active_count() == 1, threading.enumerate()
    # A collection in a forked process would look at every object of the imports, and so copy each of their pages.
    gc.collect()
    gc.freeze()
    forked = serve(socket.socket(fileno=0))
    if forked is not None:
        forked()
