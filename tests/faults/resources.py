"""Resources that a process holds, as the kernel says."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def sample(pid: int) -> dict[str, int]:
    """Resident memory in KiB, now and at its peak, threads and open files of a process."""
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
    status = {name: value.strip() for name, _, value in rows}
    return {
        "pid": pid,
        "rss_kib": int(status["VmRSS"].split()[0]),
        "peak_kib": int(status["VmHWM"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all threads."""
    # The second field is a name in brackets and may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
