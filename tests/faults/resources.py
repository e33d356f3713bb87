"""What a process holds, as the kernel says."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def sample(pid: int) -> dict[str, int]:
    """Resident memory in KiB, threads and open files of a process."""
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
    status = {name: value.strip() for name, _, value in rows}
    return {
        "pid": pid,
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }
