"""Watches the processes of a Spark that this process started: memory and processor time. Linux: it reads /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_SECONDS_BETWEEN = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """What processes had, or took, while a block ran."""

    java_mib: float = 0.0
    """Most resident memory of Java since it started: driver and executors, where the master is local."""
    worker_mib: float = 0.0
    """The same of the largest of Spark's Python workers."""
    java_seconds: float = 0.0
    """Processor time of Java."""
    worker_seconds: float = 0.0
    """Processor time of all Python workers together."""


class _Process(NamedTuple):
    parent: int
    name: str
    own_seconds: float
    seconds: float
    """With those of its children that have ended."""


class SparkProcesses:
    """Java and Spark's Python workers, below this process."""

    def __init__(self) -> None:
        self._java_kib = self._worker_kib = 0
        self._before = self._seconds()

    def used(self) -> Used:
        """What they used since this was made; memory since they started."""
        self.look()
        java, workers = self._seconds()
        before = self._before
        return Used(self._java_kib / 1024, self._worker_kib / 1024, java - before[0], workers - before[1])

    def look(self) -> None:
        """Takes the memory that the kernel tells now. It keeps the most of each process that is still there."""
        for pid, is_java in _below_java(_processes()):
            with suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
                if is_java:
                    self._java_kib = max(self._java_kib, kib)
                else:
                    self._worker_kib = max(self._worker_kib, kib)

    def _seconds(self) -> tuple[float, float]:
        processes = _processes()
        java = workers = 0.0
        for pid, is_java in _below_java(processes):
            if is_java:
                java += processes[pid].own_seconds
            else:
                workers += processes[pid].seconds
        return java, workers


@contextmanager
def spark_processes() -> Iterator[SparkProcesses]:
    """Watches until the block is left."""
    watched, over = SparkProcesses(), threading.Event()

    def watch() -> None:
        while not over.wait(_SECONDS_BETWEEN):
            watched.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()


def _below_java(processes: dict[int, _Process]) -> Iterator[tuple[int, bool]]:
    """Each Java that this process started and whatever is below it, and whether it is Java."""
    for pid, process in processes.items():
        at, java = pid, None
        while at in processes and at != os.getpid():
            if processes[at].name == "java":
                java = at
            at = processes[at].parent
        # Java starts others by a child that has its memory, and the name of a thread, for a moment.
        if at == os.getpid() and java is not None and process.name.startswith(("java", "python")):
            yield pid, java == pid


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                user, system, of_children, of_their_system = (int(field) / _TICKS for field in fields[11:15])
                own = user + system
                found[int(entry.name)] = _Process(int(fields[1]), name, own, own + of_children + of_their_system)
    return found
