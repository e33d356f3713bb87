"""How long tests wait: longer where other programs use the processor.

The factor is measured once, when a run begins. Workers and programs that tests start inherit it.
"""

from __future__ import annotations

import os
import time

_SAMPLE_SECONDS = 0.1
"""Processor time of the measurement."""

_MOST = 10.0
"""A machine that is still busier fails tests."""


def _measured() -> float:
    """Returns the time that this thread needs for each second of processor time."""
    began, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < _SAMPLE_SECONDS:
        pass
    return (time.perf_counter() - began) / _SAMPLE_SECONDS


FACTOR = float(os.environ.setdefault("TEST_PATIENCE", f"{min(max(_measured(), 1.0), _MOST):.1f}"))
"""1.0 on an idle machine. The environment variable sets it for a machine that is to become busy."""

TIMEOUT = 20.0 * FACTOR
"""Seconds until an answer must be there."""
