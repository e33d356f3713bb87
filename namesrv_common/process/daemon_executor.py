"""Threads for calls that may hang, such as a disk's: the process ends without waiting for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class DaemonExecutor(Executor):
    """A ``ThreadPoolExecutor`` for whose threads Python does not wait at the end of the process.

    For the library's own executor Python waits as long as a disk hangs, whatever its shutdown said.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Starts the threads with the first call."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._has_ended = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True) for number in range(threads)
        ]

    def submit(self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> Future[ResultT]:
        """Has a thread make a call. Raises RuntimeError after ``shutdown``."""
        future: Future[ResultT] = Future()
        with self._lock:
            if self._has_ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
            self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls.

        Calls that were submitted before are made, unless they are cancelled or the process ends.
        """
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                if cancel_futures:
                    with suppress(queue.Empty):  # a thread may take the last one in between
                        while submitted := self._calls.get_nowait():
                            submitted[0].cancel()
                for _ in self._threads:
                    self._calls.put(None)
        if wait:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()

    def _run(self) -> None:
        while (submitted := self._calls.get()) is not None:
            future, call = submitted
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - the boundary of a thread: whoever waits gets it
                    future.set_exception(error)
            del submitted, future, call  # they would be held until the next one comes
