"""Server-sent events, which tell pages that there is something new. The pages then ask for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter

from aiohttp import web

from groundwork.places import owner_of
from namesrv_console.fleet.fleet import Fleet
from namesrv_console.listener.protection import HEADERS, problem

MAX_VIEWERS = 200
"""Most pages that are told at once; each costs a connection and a task."""

MAX_ENDING = 50
"""Most streams beyond that, of those that are told to end."""

QUIET_SECONDS = 10.0
"""Something is sent at least so often: a page, and a proxy between, sees that the console lives."""

WRITE_SECONDS = 10.0
"""How long a page may take to read one event; then it is cut, and comes back by itself."""

LEAST_PAUSE_SECONDS = 0.5
"""Pause after an event: pages ask for what is new after each."""


class Events:
    """The event streams of all pages."""

    def __init__(self) -> None:
        self._viewers: dict[asyncio.Event, str] = {}
        """Each with what ends it, and whose it is; the oldest first."""
        self._closing = asyncio.Event()

    async def handle(self, request: web.Request, fleet: Fleet) -> web.StreamResponse:
        """One page's stream of news of a fleet; lasts until the page goes away or the console ends."""
        if len(self._viewers) >= MAX_VIEWERS:
            self._end_one()
        if len(self._viewers) >= MAX_VIEWERS + MAX_ENDING:
            return problem(503, "TOO_MANY_VIEWERS", f"{MAX_VIEWERS} pages are open already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        ended = asyncio.Event()
        if self._closing.is_set():
            ended.set()
        self._viewers[ended] = owner_of(request.remote or "?")
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._tell(response, fleet, ended)
        finally:
            del self._viewers[ended]
        return response

    def close(self) -> None:
        """Ends all streams."""
        self._closing.set()
        for ended in self._viewers:
            ended.set()

    def _end_one(self) -> None:
        """Ends the oldest stream of the address that has most: its page, if there is one, comes back by itself."""
        open_ones = {ended: owner for ended, owner in self._viewers.items() if not ended.is_set()}
        if open_ones:
            [(most, _)] = Counter(open_ones.values()).most_common(1)
            next(ended for ended, owner in open_ones.items() if owner == most).set()

    async def _tell(self, response: web.StreamResponse, fleet: Fleet, ended: asyncio.Event) -> None:
        version = -1
        closing = asyncio.create_task(ended.wait())
        try:
            while not closing.done():
                news = asyncio.create_task(fleet.later_than(version))
                await asyncio.wait((news, closing), timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                version = fleet.version
                event = json.dumps({"version": version, "now": fleet.timing.now_millis()})
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(f"retry: 2000\ndata: {event}\n\n".encode())
                await asyncio.wait((closing,), timeout=LEAST_PAUSE_SECONDS)
        finally:
            closing.cancel()
