"""Listeners to changes: callbacks and iterators."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Protocol, Self

from route_client.callbacks import CallbackThread
from route_client.routes.cache import RouteChange
from route_client.routes.changes import ChangeBuffer


class Listener(Protocol):
    """Gets each change, and must take it without waiting."""

    def put(self, change: RouteChange) -> None:
        """Takes a change."""

    def close(self) -> None:
        """There are no more."""


class Listeners:
    """All listeners. Changes come from the event loop; listeners come and go from any thread."""

    def __init__(self) -> None:
        self._all: dict[Listener, None] = {}

    def add(self, listener: Listener) -> None:
        """Adds a listener."""
        self._all[listener] = None

    def remove(self, listener: Listener) -> None:
        """Removes a listener and closes it. Not an error if it is gone already."""
        if listener in self._all:
            self._all.pop(listener, None)
            listener.close()

    def put(self, change: RouteChange) -> None:
        """Tells all of them."""
        for listener in list(self._all):
            listener.put(change)

    @property
    def callback_failures(self) -> int:
        """Calls of callbacks that raised."""
        return sum(listener.failures for listener in list(self._all) if isinstance(listener, CallbackThread))

    def close(self) -> list[CallbackThread]:
        """Closes all; returns those whose threads have not ended yet."""
        listeners = list(self._all)
        for listener in listeners:
            self.remove(listener)
        return [listener for listener in listeners if isinstance(listener, CallbackThread)]


class AsyncChanges:
    """Changes for one task: ``async for change in changes``. Close it, or use it in a ``with`` statement."""

    def __init__(self, listeners: Listeners, topics: Collection[str] | None) -> None:
        self._listeners = listeners
        self._buffer = ChangeBuffer(topics)
        self._wake = asyncio.Event()
        self._closed = False
        listeners.add(self)

    def put(self, change: RouteChange) -> None:
        """Takes a change."""
        if self._buffer.put(change):
            self._wake.set()

    def close(self) -> None:
        """Ends the iteration. Changes that still wait are dropped."""
        self._closed = True
        self._wake.set()
        self._listeners.remove(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RouteChange:
        while not self._closed:
            if (change := self._buffer.take()) is not None:
                return change
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def join_all(threads: Collection[CallbackThread], seconds: float, caller: threading.Thread | None) -> int:
    """Waits for the ends of callbacks' threads; returns how many of them still block.

    Args:
        threads: Closed ones.
        seconds: How long for all of them.
        caller: A thread that waits for this itself, so that it cannot end before.
    """
    deadline = time.monotonic() + seconds
    return sum(not thread.join(max(0.0, deadline - time.monotonic()), caller) for thread in threads)
