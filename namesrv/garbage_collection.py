"""How often the garbage collector runs: a full run looks at every row of the tables and holds up everything else."""

from __future__ import annotations

import gc

YOUNG, MIDDLE, FULL = 5_000, 10, 1_000
"""Net new objects before a run over the youngest, such runs before one over the middle generation, and those before a
full one. With Python's own numbers (700, 10, 10) filling the tables causes full runs, of 40 ms and more at 400,000
rows. They find nothing: rows hold no cycles. What this does not cure: rows that replace others are no net growth, so
they pile up before a young run, which may then take some 10 ms (``python -m bench.core`` prints the longest)."""


def tune_garbage_collection() -> None:
    """Makes full runs rare, and exempts what is there already. Call it once, after importing everything."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, FULL)
