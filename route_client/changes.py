"""Readers of changes: buffers merged by topic, iterators and callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from route_client.cache import RouteChange

# Buffers of changes, one for each reader, merged by topic, so that no reader can be too slow.


class ChangeBuffer:
    """Changes that wait for one reader, oldest topic first, one for each topic at most.

    A change of a topic that still waits is merged into it: from the first before to the last after. Changes that undo
    each other are dropped. So the buffer never holds more than the topics that the client keeps.
    """

    def __init__(self, topics: Collection[str] | None = None) -> None:
        """Takes the topics that the reader wants; None means all."""
        self._topics = None if topics is None else frozenset(topics)
        self._waiting: dict[str, RouteChange] = {}
        self.merged = 0
        """Changes that were merged into a waiting one."""

    def put(self, change: RouteChange) -> bool:
        """Adds a change; returns whether the reader wants it."""
        if self._topics is not None and change.topic not in self._topics:
            return False
        earlier = self._waiting.get(change.topic)
        if earlier is None:
            self._waiting[change.topic] = change
            return True
        self.merged += 1
        merged = replace(change, before=earlier.before, removals=(*earlier.removals, *change.removals))
        if _is_nothing(merged):
            del self._waiting[change.topic]
        else:
            self._waiting[change.topic] = merged
        return True

    def take(self) -> RouteChange | None:
        """Removes the oldest change and returns it; None if nothing waits."""
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))

    def __len__(self) -> int:
        return len(self._waiting)


def _is_nothing(change: RouteChange) -> bool:
    stale_before = change.before.stale if change.before is not None else None
    return (change.old_route, stale_before) == (change.new_route, change.after.stale)


# Callbacks for changes, each on a thread of its own: one that raises or blocks harms neither the client nor others.

Callback = Callable[[RouteChange], object]

_log = logging.getLogger(__name__)


class ChangeQueue:
    """A ChangeBuffer that one thread fills and others wait at."""

    def __init__(
        self, topics: Collection[str] | None = None, on_close: Callable[[ChangeQueue], object] | None = None
    ) -> None:
        """Takes the topics that the reader wants (None means all), and a function to call when it wants no more."""
        self._on_close = on_close
        self._buffer = ChangeBuffer(topics)
        self._condition = threading.Condition()
        self._closed = False

    def put(self, change: RouteChange) -> None:
        """Adds a change and wakes a reader."""
        with self._condition:
            if self._buffer.put(change):
                self._condition.notify()

    def close(self) -> None:
        """Lets readers end. Changes that still wait are dropped."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._on_close is not None:
            self._on_close(self)

    def take(self, timeout_seconds: float | None = None) -> RouteChange | None:
        """The next change; waits for it. None after the time, or once closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or len(self._buffer) > 0, timeout_seconds)
            return None if self._closed else self._buffer.take()

    def __iter__(self) -> Iterator[RouteChange]:
        """Changes until closed."""
        while (change := self.take()) is not None:
            yield change


class CallbackThread:
    """Calls one callback with each change, one at a time."""

    def __init__(self, callback: Callback, topics: Collection[str] | None = None) -> None:
        """Starts the thread."""
        self._callback = callback
        self._queue = ChangeQueue(topics)
        self.failures = 0
        """Calls that raised."""
        self._thread = threading.Thread(target=self._run, name="route-client-callback", daemon=True)
        self._thread.start()

    def put(self, change: RouteChange) -> None:
        """Makes the thread call the callback soon."""
        self._queue.put(change)

    def close(self) -> None:
        """Makes the thread end after the call under way."""
        self._queue.close()

    def join(self, timeout_seconds: float, caller: threading.Thread | None = None) -> bool:
        """Waits for the thread's end; False if its callback still blocks.

        A callback may close the client: then the thread itself is the caller, and is not waited for.
        """
        if self._thread is caller:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for change in self._queue:
            try:
                self._callback(change)
            except Exception:  # noqa: BLE001 - whatever it raises is its own affair
                self.failures += 1
                _log.exception("a callback for route changes raised; it goes on with the next change")


# Listeners to changes: callbacks and iterators.


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
