"""Readers of changes: iterators and callbacks, each with a buffer that is merged by topic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Self

from route_client.cache import RouteChange

Callback = Callable[[RouteChange], object]

_log = logging.getLogger(__name__)


class Changes:
    """Changes for one reader, oldest topic first: iterate in a thread, or by ``async for`` on the client's event loop.

    A change of a topic that still waits is merged into it: from the first before to the last after. Changes that undo
    each other are dropped. So a reader cannot be too slow, and never more waits than the topics that the client keeps.
    Close it, or use it in a ``with`` statement.
    """

    def __init__(self, topics: Collection[str] | None, on_close: Callable[[Changes], object]) -> None:
        """Takes the topics that the reader wants (None means all), and a function to call when it wants no more."""
        self._topics = None if topics is None else frozenset(topics)
        self._on_close = on_close
        self._waiting: dict[str, RouteChange] = {}
        self._condition = threading.Condition()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of a reader that iterates by ``async for``."""
        self._closed = False

    def put(self, change: RouteChange) -> None:
        """Adds a change and wakes the reader. Belongs to the client's event loop."""
        if self._topics is not None and change.topic not in self._topics:
            return
        with self._condition:
            earlier = self._waiting.get(change.topic)
            if earlier is not None:
                change = replace(change, before=earlier.before, removals=(*earlier.removals, *change.removals))
            if earlier is not None and _is_nothing(change):
                del self._waiting[change.topic]
            else:
                self._waiting[change.topic] = change
            self._condition.notify()
        self._wake.set()

    def close(self) -> None:
        """Ends the iteration. Changes that still wait are dropped."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its reader with it
                self._loop.call_soon_threadsafe(self._wake.set)
        self._on_close(self)

    def take(self, timeout_seconds: float | None = None) -> RouteChange | None:
        """The next change; waits for it. None after the time, or once closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._waiting, timeout_seconds)
            if self._closed or not self._waiting:
                return None
            return self._waiting.pop(next(iter(self._waiting)))

    def __iter__(self) -> Iterator[RouteChange]:
        """Changes until closed."""
        while (change := self.take()) is not None:
            yield change

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RouteChange:
        self._loop = asyncio.get_running_loop()
        while not self._closed:
            if (change := self.take(0)) is not None:
                return change
            self._wake.clear()
            await self._wake.wait()
        raise StopAsyncIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_nothing(change: RouteChange) -> bool:
    stale_before = change.before.stale if change.before is not None else None
    return (change.old_route, stale_before) == (change.new_route, change.after.stale)


class Listeners:
    """All readers of a client's changes. Changes come from the event loop; readers come and go from any thread."""

    def __init__(self) -> None:
        self._all: dict[Changes, threading.Thread | None] = {}
        """With the thread of each reader that is a callback."""
        self._lock = threading.Lock()
        self.callback_failures = 0
        """Calls of callbacks that raised."""

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Adds a reader that iterates."""
        reader = Changes(topics, self._drop)
        self._all[reader] = None
        return reader

    def call(self, callback: Callback, topics: Collection[str] | None = None) -> Changes:
        """Adds a callback, on a thread of its own: one that raises or blocks harms nobody else.

        The thread ends after the call that runs when the reader is closed.
        """
        reader = Changes(topics, self._drop)
        thread = threading.Thread(
            target=self._call_back, args=(reader, callback), name="route-client-callback", daemon=True
        )
        self._all[reader] = thread
        thread.start()
        return reader

    def put(self, change: RouteChange) -> None:
        """Tells all of them."""
        for reader in list(self._all):
            reader.put(change)

    def close(self, seconds: float = 0.0, caller: threading.Thread | None = None) -> int:
        """Closes all, and waits for the ends of callbacks' threads; returns how many of them still block.

        Args:
            seconds: How long to wait for all of them.
            caller: A thread that waits for this itself, so that it cannot end before: a callback may close the client.
        """
        readers = dict(self._all)
        for reader in readers:
            reader.close()
        deadline = time.monotonic() + seconds
        threads = [thread for thread in readers.values() if thread is not None and thread is not caller]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in threads)

    def _call_back(self, reader: Changes, callback: Callback) -> None:
        for change in reader:
            try:
                callback(change)
            except Exception:  # noqa: BLE001 - whatever it raises is its own affair
                with self._lock:
                    self.callback_failures += 1
                _log.exception("a callback for route changes raised; it goes on with the next change")

    def _drop(self, reader: Changes) -> None:
        self._all.pop(reader, None)
