"""The routes that a client keeps, and the readers of their changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Self

from namesrv_api.v1 import route_data_pb2

from route_client.cache import Answer, RouteCache, RouteChange, RoutesTooLarge, Stale
from route_client.disk_cache import DiskCache, DiskWriter
from route_client.queues import PublishInfoCache
from route_client.settings import ClientSettings
from route_client.watch_stream import KeptTopics

CLOSE_SECONDS = 5.0
"""How long ``close`` waits for callbacks and writes that run: a callback may block forever."""

_log = logging.getLogger(__name__)

# Readers of changes: iterators and callbacks, each with a buffer that is merged by topic.

Callback = Callable[[RouteChange], object]


class Changes:
    """Changes for one reader, oldest topic first: iterate in a thread, or by ``async for`` on the client's event loop.

    A change of a topic that still waits is merged into it: from the first before to the last after. Changes that undo
    each other are dropped. So a reader cannot be too slow, and never more waits than the topics that the client keeps.
    Close it, or use it in a ``with`` statement.
    """

    def __init__(self, topics: Collection[str] | None, readers: dict[Changes, threading.Thread | None]) -> None:
        """Takes the topics that the reader wants (None means all), and adds it to the readers until it is closed."""
        self._topics = None if topics is None else frozenset(topics)
        self._readers = readers
        self._waiting: dict[str, RouteChange] = {}
        self._condition = threading.Condition()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of a reader that iterates by ``async for``."""
        self._closed = False
        readers[self] = None

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
        self._readers.pop(self, None)

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

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Adds a reader that iterates."""
        return Changes(topics, self._all)

    def call(self, callback: Callback, topics: Collection[str] | None = None) -> Changes:
        """Adds a callback, on a thread of its own: one that raises or blocks harms nobody else.

        The thread ends after the call that runs when the reader is closed.
        """
        reader = Changes(topics, self._all)
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
                _log.exception("a callback for route changes raised; it goes on with the next change")


# Only here an answer changes a route, and the disk and the readers hear of it.


class KeptRoutes:
    """The topics of a client with their routes, in memory and on disk. Belongs to one event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        """Starts empty. Raises OSError if the folder of the disk cache cannot be made."""
        self.topics = KeptTopics(settings.max_topics)
        self.cache = RouteCache(settings.hold_seconds, time.monotonic)
        self.infos = PublishInfoCache(settings)
        self.listeners = Listeners()
        self.disk = None if settings.cache_dir is None else DiskWriter(DiskCache(settings.cache_dir, settings.fleet))
        self._hold_timer: asyncio.TimerHandle | None = None

    def take(self, answer: Answer | ValueError) -> ValueError | None:
        """Takes an answer, or the error of one that cannot be read. Returns why not, if it is not taken."""
        try:
            if isinstance(answer, Answer):
                if answer.topic in self.topics.additions:
                    self._tell(self.cache.offer(answer), answer.wire)
                return None
        except RoutesTooLarge as too_large:
            answer = too_large
        self.cache.counters.refused += 1
        _log.warning("an answer is not taken: %s", answer)
        return answer

    async def restore(self, topic: str) -> None:
        """Takes a topic's route from disk, if nothing else is known of it."""
        if self.disk is None or self.cache.get(topic) is not None:
            return
        route = await self.disk.load(topic)
        if route is not None and topic in self.topics.additions:
            self._tell(self.cache.restore(topic, route))

    def set_cut_off(self, cut_off: bool) -> None:
        """Notes whether no name server keeps the routes up to date, and reports routes that are stale since."""
        for change in self.cache.set_cut_off(cut_off):
            self.listeners.put(change)

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer. Its file on disk stays."""
        self.topics.additions.pop(topic, None)
        self.cache.forget(topic)
        self.infos.forget(topic)

    async def close(self, caller: threading.Thread) -> None:
        """Saves routes that wait for that, and ends all threads but the caller, which waits for this."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        if self.disk is not None:
            await self.disk.close(CLOSE_SECONDS)
        blocked = await asyncio.to_thread(self.listeners.close, CLOSE_SECONDS, caller)
        if blocked:
            _log.warning("%d callbacks still block; their threads end with them", blocked)

    def _tell(self, change: RouteChange | None, wire: route_data_pb2.TopicRouteData | None = None) -> None:
        """Tells the disk and the readers of a change; ``wire`` is its route as a name server sent it."""
        if change is None:
            return
        after = change.after
        is_answer = after.stale in {None, Stale.DISCONNECTED}
        if after.stale is Stale.HELD:
            _log.warning("topic %s lost all brokers and nobody says why: its route stays for now", change.topic)
            self._arm_hold_timer()
        elif is_answer and self.disk is not None:
            self.disk.save(change.topic, None if wire is None else wire.SerializeToString())
        if is_answer and after.route is not None and after.route.groups_without_addresses:
            _log.warning("topic %s has queues on groups without addresses", change.topic)
        self.listeners.put(change)

    def _arm_hold_timer(self) -> None:
        """All holds last equally long, so a timer that is set already comes first."""
        ends = self.cache.next_hold_ends() if self._hold_timer is None else None
        if ends is not None:
            seconds = max(0.0, ends - time.monotonic())
            self._hold_timer = asyncio.get_running_loop().call_later(seconds, self._expire_holds)

    def _expire_holds(self) -> None:
        self._hold_timer = None
        for answer, change in self.cache.expire_holds():
            _log.warning("topic %s: the loss of all brokers is taken, nothing else was heard in time", change.topic)
            self._tell(change, answer.wire)
        self._arm_hold_timer()
