"""Callbacks for changes, each on a thread of its own: one that raises or blocks harms neither the client nor others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator

from route_client.routes.cache import RouteChange
from route_client.routes.changes import ChangeBuffer

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
