"""Watches the resident memory of processes below this one while a block runs. Linux: it reads /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SECONDS_BETWEEN = 0.05


class PeakMemory:
    """The most that each process had since the block began, as the kernel notes it: no sample is too late for it."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, int], int] = {}

    def java_mib(self) -> float:
        """Spark's Java process: driver and executors, where the master is local."""
        return self._most("java")

    def worker_mib(self) -> float:
        """The largest of Spark's Python workers."""
        return self._most("python")

    def look(self) -> None:
        """Takes what the kernel says now."""
        parents = _parents()
        for pid in parents:
            java = _ancestor_named(pid, "java", parents)
            if java is None:
                continue
            with suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
                key = ("java" if java == pid else "python", pid)
                self._peaks[key] = max(peak, self._peaks.get(key, 0))

    def _most(self, kind: str) -> float:
        return max((peak for (of, _), peak in self._peaks.items() if of == kind), default=0) / 1024


@contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    """Watches until the block is left."""
    peak, over = PeakMemory(), threading.Event()

    def watch() -> None:
        while not over.wait(_SECONDS_BETWEEN):
            peak.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.look()


def _ancestor_named(pid: int, name: str, parents: dict[int, tuple[int, str]]) -> int | None:
    """The process of that name that a process is, or is below; None: it is below none that is below this one."""
    found = None
    while pid in parents:
        parent, comm = parents[pid]
        if comm == name:
            found = pid
        if parent == os.getpid():
            return found
        pid = parent
    return None


def _parents() -> dict[int, tuple[int, str]]:
    """Parent and name of each process."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                found[int(entry.name)] = (int(rest.split()[1]), name)
    return found
