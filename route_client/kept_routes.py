"""The routes that a client keeps. Only here an answer changes a route, and the disk and the readers hear of it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from namesrv_api.v1 import route_data_pb2

from route_client.cache import Answer, RouteCache, RouteChange, RoutesTooLarge, Stale
from route_client.changes import Listeners
from route_client.disk_cache import DiskCache, DiskWriter
from route_client.queues import PublishInfoCache
from route_client.settings import ClientSettings
from route_client.watch_stream import KeptTopics

CLOSE_SECONDS = 5.0
"""How long ``close`` waits for callbacks and writes that run: a callback may block forever."""

_log = logging.getLogger(__name__)


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
                if answer.topic in self.topics:
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
        if route is not None and topic in self.topics:
            self._tell(self.cache.restore(topic, route))

    def set_cut_off(self, cut_off: bool) -> None:
        """Notes whether no name server keeps the routes up to date, and reports routes that are stale since."""
        for change in self.cache.set_cut_off(cut_off):
            self.listeners.put(change)

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer. Its file on disk stays."""
        self.topics.drop(topic)
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
