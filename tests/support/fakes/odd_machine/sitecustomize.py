"""What Python imports first where this folder is on PYTHONPATH: sets the clock or the version that variables name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from namesrv_common import version


def _set_clock(path: Path, nanos: Callable[[], int]) -> None:
    def shifted() -> int:
        return nanos() + round(float(path.read_text(encoding="ascii")) * 1_000_000_000)

    time.time_ns = shifted
    time.time = lambda: shifted() / 1_000_000_000


if os.environ.get("ODD_MACHINE_CLOCK"):
    _set_clock(Path(os.environ["ODD_MACHINE_CLOCK"]), time.time_ns)
if os.environ.get("ODD_MACHINE_VERSION"):
    version.__version__ = os.environ["ODD_MACHINE_VERSION"]
