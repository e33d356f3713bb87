"""The threads of a program, and its end: steps that have a deadline."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog

_log = structlog.get_logger(__name__)

STEP_SECONDS = 5.0
"""Deadline of a step that has none of its own, well above what it takes."""


# Threads for calls that may hang, such as a disk's: the process ends without waiting for them.

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
        """Takes no more calls. Calls that were submitted before are made, unless the process ends."""
        assert not cancel_futures, "nobody needs it"
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
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
                except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the future has it
                    future.set_exception(error)
            del submitted, future, call  # they would be held until the next one comes


# An event loop in a thread of its own, for a listener of a program that waits in threads.

JOIN_SECONDS = 5.0
"""Time for what runs in the loop to answer, and for its thread to end: well above what either may take."""

STOP_LISTENER_SECONDS = 2 * JOIN_SECONDS + 3.0
"""Deadline of the stop of a listener in such a thread, which consists of its last work and its end."""


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

    def stop(self, last: Coroutine[Any, Any, object]) -> None:
        """Runs something as the last thing, and ends even if that fails."""
        try:
            self.run(last)
        except Exception:
            logging.getLogger(__name__).exception("the last work of the thread %s failed", self._thread.name)
        if self.has_started:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_SECONDS)
        if not self._loop.is_running():
            self.close()

    def close(self) -> None:
        """Gives the loop back, of one that does not run."""
        self._loop.close()


def _log_defect(done: Future[object]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logging.getLogger(__name__).error("work in the background failed", exc_info=error)


# Steps of a shutdown. A step that fails or hangs is logged, and the next one runs.


async def run_step(name: str, step: Awaitable[Any], seconds: float = STEP_SECONDS) -> None:
    """Runs a step, and cancels it at its deadline. Raises nothing that the step raises."""
    work = asyncio.ensure_future(step)
    try:
        await asyncio.wait({work}, timeout=seconds)
        log_end(name, work, seconds)
    finally:
        work.cancel()  # is not awaited: a step may ignore it


async def in_daemon_thread(name: str, call: Callable[[], object]) -> None:
    """Makes a call that may hang, in a thread that does not keep the process alive."""
    executor = DaemonExecutor(1, name)
    try:
        await asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)


def run_blocking_step(name: str, step: Callable[[], object], seconds: float = STEP_SECONDS) -> None:
    """Runs a step in a daemon thread, and leaves it behind at its deadline. Raises nothing that the step raises."""
    executor = DaemonExecutor(1, f"stop-{name}")
    work = executor.submit(step)
    executor.shutdown(wait=False)
    wait({work}, seconds)
    log_end(name, work, seconds)


def log_end(name: str, work: asyncio.Future[Any] | Future[Any], seconds: float) -> None:
    """Logs that work has failed, or has not ended within its deadline of so many seconds."""
    if not work.done():
        _log.error("shutdown_step_timed_out", step=name, seconds=seconds)
        return
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    if error is not None:
        _log.error("shutdown_step_failed", step=name, exc_info=error)
