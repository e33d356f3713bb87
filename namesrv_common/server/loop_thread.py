"""An event loop in a thread of its own, for a listener of a program that waits in threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

JOIN_SECONDS = 5.0
"""Time for what runs in the loop to answer, and for its thread to end: well above what either may take."""

STOP_LISTENER_SECONDS = 2 * JOIN_SECONDS + 3.0
"""Deadline of the stop of a listener in such a thread, which consists of its last work and its end."""

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class LoopThread:
    """Has a thread once started. Before that its loop runs in the thread of the caller."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def has_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_over(self) -> bool:
        """Whether its loop has ended."""
        return self._loop.is_closed()

    def start(self) -> None:
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs something in the loop and waits for it, once started ``JOIN_SECONDS`` at most. Raises TimeoutError."""
        if not self.has_started:
            return self._loop.run_until_complete(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_SECONDS)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Has something run in the loop, as soon as that runs; after its end nothing happens."""
        if self.is_over:
            work.close()
            return
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_defect)

    def stop(self, last: Coroutine[Any, Any, object]) -> bool:
        """Runs something as the last thing, and ends even if that fails. Whether the thread has ended."""
        try:
            self.run(last)
        except Exception:  # noqa: BLE001 - logged, and the thread ends
            _log.exception("the last work of the thread %s failed", self._thread.name)
        if self.has_started:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_SECONDS)
        if self._loop.is_running():
            return False
        self.close()
        return True

    def close(self) -> None:
        """Gives the loop back, of one that does not run."""
        self._loop.close()


def _log_defect(done: Future[object]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.error("work in the background failed", exc_info=error)
