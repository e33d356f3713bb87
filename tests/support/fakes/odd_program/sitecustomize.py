"""What Python imports first where this folder is on PYTHONPATH: does what variables say (see the package)."""

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


if path := os.environ.get("ODD_CLOCK"):
    _set_clock(Path(path), time.time_ns)
if odd_version := os.environ.get("ODD_VERSION"):
    version.__version__ = odd_version
if path := os.environ.get("FAILPOINTS"):
    from tests.support import failpoints  # the folder of tests is on the path of no other program

    failpoints.install(Path(path))
