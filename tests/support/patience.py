"""How long tests wait: longer where other programs use the processor.

The factor is measured once, when a run begins. Workers and programs that tests start inherit it.
"""

from __future__ import annotations

import os
import time

_TURNS = 4_000_000
"""Turns of an empty loop, which one idle core of 2021 takes ``_SAMPLE_SECONDS`` for."""

_SAMPLE_SECONDS = 0.1

_MOST = 10.0
"""A machine that is still slower fails tests."""


def _measured() -> float:
    """Returns how many times as long as on an idle core a computation takes, because of others or of a slow core."""
    began = time.perf_counter()
    for _ in range(_TURNS):
        pass
    return (time.perf_counter() - began) / _SAMPLE_SECONDS


FACTOR = float(os.environ.setdefault("TEST_PATIENCE", f"{min(max(_measured(), 1.0), _MOST):.1f}"))
"""1.0 on an idle machine. The environment variable sets it for a machine that is to become busy."""

TIMEOUT = 20.0 * FACTOR
"""Seconds until an answer must be there."""
