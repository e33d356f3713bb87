"""How much is measured, and the timer of all workloads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rows: tuple[int, ...] = (1_000_000, 1_600_000, 10_000_000)
    """Rows of the snapshots of ``bulk-posix``."""
    s3_rows: int = 1_600_000
    """Rows of the snapshot of ``bulk-s3``."""
    rounds: int = 3
    """Fresh Sparks for each figure of ``bulk`` and ``start``."""
    batches: int = 1_000
    """Batches of the log of ``operations``: more than half a day of one a minute."""
    changes: int = 100
    """Changes whose way into the log is timed."""


QUICK = Sizes(rows=(1_600_000,), rounds=1, batches=300, changes=20)
"""With these each workload ends within about three minutes on two cores."""


@contextmanager
def timed() -> Iterator[list[float]]:
    """Puts the seconds of the block into the list."""
    seconds: list[float] = []
    began = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - began)
