"""The thread that writes routes to disk and reads them, beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from route_client.routes.route import TopicRoute
from route_client.source.disk_cache import DiskCache


class DiskWriter:
    """Saves each topic's latest route. What changes while the disk is busy is saved once, as it is then."""

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="route-client-disk")
        self._waiting: dict[str, TopicRoute | None] = {}
        self._wake = asyncio.Event()

    def save(self, topic: str, route: TopicRoute | None) -> None:
        """Has a route saved soon, or its file removed if there is none any more."""
        self._waiting[topic] = route
        self._wake.set()

    async def load(self, topic: str) -> TopicRoute | None:
        """The route that was saved last, if its file can be trusted."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.cache.load, topic)

    async def run(self) -> None:
        """Saves until cancelled."""
        while True:
            await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Saves what waits."""
        self._wake.clear()
        waiting, self._waiting = self._waiting, {}
        await asyncio.get_running_loop().run_in_executor(self._thread, self._save_all, waiting)

    def close(self) -> None:
        """Ends the thread after what it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _save_all(self, routes: dict[str, TopicRoute | None]) -> None:
        for topic, route in routes.items():
            self.cache.save(topic, route)
