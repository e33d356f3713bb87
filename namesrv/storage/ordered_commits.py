"""The queue of durable changes: one at a time, in the order they came, on disk first and in memory afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from groundwork.daemon_executor import DaemonExecutor
from namesrv.core.errors import NotDurable, Overloaded

ResultT = TypeVar("ResultT")
ContentT = TypeVar("ContentT")

_log = structlog.get_logger(__name__)


class OrderedCommits:
    """The queue of changes to one file, and the thread that writes it."""

    def __init__(self, what: str, max_waiting: int) -> None:
        """Starts nothing yet.

        Args:
            what: What is changed, in snake case: for log lines, errors and the thread's name.
            max_waiting: Changes that may wait for their turn.
        """
        self._what = what
        self._max_waiting = max_waiting
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._thread = DaemonExecutor(1, what.replace("_", "-"))

    async def run(self, commit: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Runs a commit when its turn has come, and returns its result.

        From then on it runs to its end even if its caller goes away, because a write cannot be called back.

        Raises:
            Overloaded: Too many wait already.
            CallRefused: What the commit raises.
        """
        if self._waiting >= self._max_waiting:
            raise Overloaded(f"{self._waiting} changes of {self._what} wait for their turn already")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        task = asyncio.create_task(commit())
        task.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(task)

    async def write(self, save: Callable[[ContentT], None], content: ContentT) -> None:
        """Writes on the thread. Only a commit whose turn it is may call it.

        Args:
            save: Makes the content durable, or raises OSError that names the file and leaves what was there.

        Raises:
            NotDurable: The disk did not take it.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, save, content)
        except OSError as error:
            # The path of the file is for the log only; callers must not see it.
            _log.error(f"{self._what}_not_durable", file=error.filename, problem=error.strerror)
            raise NotDurable(error.strerror or "unknown problem") from error

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the write under way and ends the thread. Commits must refuse to change anything before."""
        try:
            async with asyncio.timeout(deadline_seconds), self._turn:
                self._thread.shutdown()
        except TimeoutError:
            _log.warning(f"{self._what}_write_did_not_end")
            self._thread.shutdown(wait=False)
