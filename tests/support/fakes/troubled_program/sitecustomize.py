"""What Python imports first where this folder is on PYTHONPATH: defects of every kind, once a file is there."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import warnings
from pathlib import Path


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


if os.environ.get("TROUBLE_COMES_WITH"):
    threading.Thread(target=_wait, args=(Path(os.environ["TROUBLE_COMES_WITH"]),), daemon=True).start()
