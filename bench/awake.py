"""Processors that stay awake while something is measured.

A virtual machine gives a processor back when it has nothing to do. Where other guests are busy, it comes back
milliseconds later, and every latency is the host's: a nearly idle server's p99 was 8 to 30 ms so, and 0.7 ms awake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_END_SECONDS = 10.0
_TURNS = 10_000
"""Between two looks whether anybody measures yet: less than a millisecond, which takes a second beside other work."""


@contextmanager
def processors_awake() -> Iterator[list[int]]:
    """Gives each processor that this process may use something to do, of the class that every other work interrupts.

    Yields:
        The ids of the processes that do nothing.
    """
    with ExitStack() as running:
        busy = [_busy(running, processor) for processor in sorted(os.sched_getaffinity(0))]
        yield [process.pid for process in busy]


def _busy(running: ExitStack, processor: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "bench.awake", str(processor), str(os.getpid())])
    running.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a busy process. It has no state, so nothing depends on when it ends."""
    with suppress(OSError):
        # A killed process needs its processor to end, and gets no time of a loaded one while its class is SCHED_IDLE.
        # Without privileges it keeps the class.
        os.sched_setaffinity(process.pid, os.sched_getaffinity(0))
        os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def main() -> None:
    """Does nothing, without a pause, on the processor that is given, until the process that started it is gone."""
    processor, parent = map(int, sys.argv[1:])  # the parent may be gone already
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(_TURNS):
            pass


if __name__ == "__main__":
    main()
