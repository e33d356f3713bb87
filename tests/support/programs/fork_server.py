"""A process that has imported our programs and forks one at each request.

    python -m tests.support.programs.fork_server PROGRAM...

Tests start a thousand programs. The imports of each took half a second of processor time, most of what such a test
costs. A forked one is a process of its own as any other: pid, signals, descriptors, exit code. ``forked_programs`` is
the other side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRELOADED = {
    "namesrv": ("namesrv.__main__", "namesrv.cli", "namesrv.server.server", "namesrv.engines.native"),
    "broker-agent": ("broker_agent.__main__", "broker_agent.cli"),
    "nsctl": ("nsctl.__main__", "nsctl.cli", "nsctl.console.app"),
}
"""What each program imports until it serves. What is missing here, or is not installed, it imports itself."""

MAX_REQUEST_BYTES = 1 << 20


def serve(requests: socket.socket) -> Callable[[], None] | None:
    """Forks programs until its input ends.

    Returns:
        In a forked process: its program's ``main``, to be called last, so that the interpreter ends as it always does.
        In the server: None.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    _tell_end(key.fd, *key.data)
                    continue
                request, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
                if not request:
                    return None
                told, (errors, *output) = socket.socket(fileno=descriptors[0]), descriptors[1:]
                pid = os.fork()
                if pid == 0:
                    for running in [each for each in selector.get_map().values() if each.data]:
                        os.close(running.fd)
                        running.data[1].close()
                    selector.close()
                    told.close()
                    requests.detach()  # standard input, which gets another meaning below
                    return _become(json.loads(request), errors, *output)
                for descriptor in (errors, *output):
                    os.close(descriptor)
                told.sendall(b"%d\n" % pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def _tell_end(pidfd: int, pid: int, told: socket.socket) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with told:
        try:
            told.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        except OSError:
            return  # whoever started it has gone


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


def _preload(programs: list[str]) -> None:
    for program in programs:
        for module in PRELOADED[program]:
            try:
                importlib.import_module(module)
            except ImportError:
                continue  # of an extra that is not installed: the program says so when it needs it
    # A thread of an import would be missing in every forked process.
    assert threading.active_count() == 1, threading.enumerate()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload(sys.argv[1:])
    # A collection in a forked process would look at every object of the imports, and so copy each of their pages.
    gc.collect()
    gc.freeze()
    forked = serve(socket.socket(fileno=0))
    if forked is not None:
        forked()
