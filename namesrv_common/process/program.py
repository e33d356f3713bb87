"""The start of a console script, its file descriptors, its freed memory, and the event that its signals set."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import importlib
import importlib.util
import io
import os
import resource
import signal
import sys

from namesrv_common.printable import how_to_install, print_error

# The start of a console script: where what it needs is not installed, one line says what to install.

EXIT_NOT_INSTALLED = EXIT_NO_OUTPUT = 2
"""As for a wrong setting: systemd does not try again."""


def run_program(program: str, module: str, extra: str) -> None:
    """Imports a program, which is the module's ``app``, and runs it.

    The wheel brings what a client library needs; each program has an extra for the rest. This module
    therefore imports nothing that has to be installed.

    Raises:
        SystemExit: A library is missing, or the output cannot be written; one line says which.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names may have any characters, and the terminal any encoding. A stream of an embedding program may refuse.
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    try:
        try:
            importlib.import_module(module).app(prog_name=program)
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if not library or importlib.util.find_spec(library) is not None:
            raise  # a part of something that is there: a defect, and no matter of installing
        print_error(program, f"{library} is missing; {how_to_install(extra)}")
        raise SystemExit(EXIT_NOT_INSTALLED) from error
    except OSError as error:
        if error.filename is not None or error.errno not in {errno.ENOSPC, errno.EIO}:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails to flush it at its end
        print_error(program, f"the output cannot be written: {error.strerror}")
        raise SystemExit(EXIT_NO_OUTPUT) from error


# File descriptors of this process: as many as the system lets it have, and some of them for others than callers.

MOST = 1_048_576
"""More than any program needs: without a limit of the system, tables as large as its limit would be made."""
FOR_OTHERS = 256
"""Kept for files, probes and outgoing calls: full listeners must not prevent disk access or health checks."""


def use_all_descriptors() -> None:
    """Raises the soft limit to the hard one, as the runtimes of Java and Go do: 1,024 is for programs with select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft not in {resource.RLIM_INFINITY, wanted} and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system allows less; what there is stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_of_listener(listeners: int = 2) -> int:
    """How many connections one of so many listeners may have: what one is flooded with leaves the others theirs."""
    return without_others(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) // listeners


def without_others(limit: int) -> int:
    """The part of a limit that connections may use. A quarter of a small limit is for other uses."""
    if limit == resource.RLIM_INFINITY:
        limit = MOST
    return limit - min(FOR_OTHERS, limit // 4)


# Memory that floods leave: glibc keeps most of it, because a little of each piece stays in use.

TRIM_SECONDS = 5.0
"""At most 10 s may pass until the memory of a flood is returned."""


async def return_freed_memory(pause_seconds: float = TRIM_SECONDS) -> None:
    """Has the C library return free memory now and then, where it can (glibc). Runs until cancelled."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while malloc_trim is not None:
        await asyncio.sleep(pause_seconds)
        await asyncio.to_thread(malloc_trim, 0)


# The signals that end a program with an event loop.


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on. Call it in the running loop, in the main thread."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
