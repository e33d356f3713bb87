"""Open calls: when permits change, the calls whose callers lost the right to them are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from namesrv_common.errors import Refused

CHECK_SLICE = 64
"""Calls that are checked before yielding: less than a millisecond, and the ends of as many calls."""

_log = structlog.get_logger(__name__)


class OpenCall(Protocol):
    """A call, or a connection, that lasts."""

    def check(self) -> None:
        """Checks again what admitted it. Raises Refused if the caller has lost the right."""

    def end(self, refusal: Refused) -> None: ...


class OpenCalls:
    """The open calls of one event loop. Everything happens in that loop."""

    def __init__(self) -> None:
        self._open: dict[OpenCall, None] = {}

    def add(self, call: OpenCall) -> None:
        """A call has been admitted in this very step; ``remove`` must follow."""
        self._open[call] = None

    def remove(self, call: OpenCall) -> None:
        """The call has ended, or was removed before."""
        self._open.pop(call, None)

    @contextmanager
    def while_allowed(self, check: Callable[[], None]) -> Iterator[None]:
        """A context in which the current task is ended with Refused once its check fails."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be ended"
        call, cancels = _TaskCall(check, task), task.cancelling()
        self.add(call)
        try:
            yield
        finally:
            self.remove(call)
            if call.refusal is not None and task.uncancel() <= cancels:  # else the caller has left, too
                raise call.refusal from None

    async def check_again(self) -> None:
        """Checks every open call, and ends those that are refused now, a few at a time."""
        ended = 0
        for count, call in enumerate(tuple(self._open), 1):
            if call in self._open:
                try:
                    call.check()
                except Refused as refusal:
                    self.remove(call)
                    call.end(refusal)
                    ended += 1
            if count % CHECK_SLICE == 0:
                await asyncio.sleep(0)
        if ended:
            _log.info("open_calls_ended", count=ended, problem="their callers lost the right to them")


@dataclass(slots=True, eq=False)
class _TaskCall:
    check: Callable[[], None]
    task: asyncio.Task[object]
    refusal: Refused | None = None

    def end(self, refusal: Refused) -> None:
        """Cancels what the task does. The task continues at the end of the context."""
        self.refusal = refusal
        self.task.cancel()
