"""What Python imports first where this folder is on PYTHONPATH: does what variables say (see the package)."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from namesrv_common import version


def _set_clock(path: Path, nanos: Callable[[], int]) -> None:
    def shifted() -> int:
        return nanos() + round(float(path.read_text(encoding="ascii")) * 1_000_000_000)

    time.time_ns = shifted
    time.time = lambda: shifted() / 1_000_000_000


class _Unraisable:
    def __del__(self) -> None:
        raise RuntimeError("trouble in a finalizer")


async def _forgotten() -> None:
    raise RuntimeError("trouble in a task")


def _fail(where: str) -> None:
    raise RuntimeError(f"trouble in {where}")


def _make_trouble() -> None:
    threading.Thread(target=_fail, args=("a thread",), name="troubled").start()
    warnings.warn("trouble in a call", RuntimeWarning, stacklevel=1)
    _Unraisable()
    logging.getLogger("trouble number one").error("%d", "two")
    for loop in [each for each in gc.get_objects() if isinstance(each, asyncio.AbstractEventLoop)]:
        if loop.is_running():
            loop.call_soon_threadsafe(_fail, "a callback")
            loop.call_soon_threadsafe(loop.create_task, _forgotten())
            loop.call_soon_threadsafe(gc.collect)


def _wait(file: Path) -> None:
    while not file.exists():
        threading.Event().wait(0.01)
    _make_trouble()


if path := os.environ.get("ODD_CLOCK"):
    _set_clock(Path(path), time.time_ns)
if odd_version := os.environ.get("ODD_VERSION"):
    version.__version__ = odd_version
if path := os.environ.get("FAILPOINTS"):
    from tests.support import failpoints  # the folder of tests is on the path of no other program

    failpoints.install(Path(path))
if path := os.environ.get("ODD_TROUBLE"):
    threading.Thread(target=_wait, args=(Path(path),), daemon=True).start()
