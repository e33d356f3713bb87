"""Connections to the page: bounded in all and by address, with a deadline for each request and its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NoReturn, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from groundwork.flood_log import FloodLog
from groundwork.places import PlaceRules, Places

RULES = PlaceRules(most=2_048, most_by_address=512, request_seconds=30.0, patience_seconds=5.0)
"""A browser has six connections; a proxy in front has those of all its viewers. An address has places for several times
``WAITING_CONNECTIONS``: a newcomer asks some turns of the event loop after it has come, and must not be gone by then.
"""

WAITING_CONNECTIONS = 64
"""Connections that the kernel keeps until they are taken, and that one turn of the event loop takes."""

LOOK_SECONDS = 0.5
"""Between two looks for connections whose time is over."""

BAD_HTTP_LOG_SECONDS = 60.0
"""Between two lines about peers that speak no HTTP."""


class Connections:
    """The connections that there are. Makes the protocol of each, for ``create_server``."""

    def __init__(
        self,
        rules: PlaceRules = RULES,
        monotonic: Callable[[], float] = time.monotonic,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._places: Places[_Guarded] = Places(rules, monotonic)
        self._of_transports: dict[asyncio.BaseTransport, _Guarded] = {}
        self._look_seconds = look_seconds

    def guarding(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Makes protocols that let those of ``make`` work, as long as their connections have a place."""
        return lambda: _Guarded(self, make())

    def middleware(self) -> Middleware:
        """Tells when a request has come and when its answer is made."""

        @web.middleware
        async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
            guarded = self._of_transports.get(cast("asyncio.BaseTransport", request.transport))
            if guarded is None:
                return await handler(request)
            guarded.answering = guarded.asked = True
            self._places.asked(guarded, lasting=request.path == "/api/events")
            try:
                return await handler(request)
            finally:
                guarded.answering = False
                self._places.asked(guarded)

        return told

    async def watch(self) -> NoReturn:
        """Cuts connections whose time is over. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds)
            for guarded in list(self._of_transports.values()):
                guarded.look()
            for guarded in self._places.late():
                guarded.cut()

    def came(self, guarded: _Guarded, address: str) -> bool:
        """A connection has come. Whether it has a place; another may have been cut for it."""
        admitted, victim = self._places.admit(guarded, address)
        if victim is not None:
            victim.cut()
        if admitted:
            self._of_transports[guarded.transport] = guarded
        return admitted

    def idle(self, guarded: _Guarded) -> None:
        """A connection has its answer, or begins another request."""
        self._places.answered(guarded)

    def went(self, guarded: _Guarded) -> None:
        """A connection has ended."""
        self._places.leave(guarded)
        self._of_transports.pop(guarded.transport, None)


class _Guarded(asyncio.Protocol):
    """One connection; hands everything on to the protocol that answers."""

    transport: asyncio.Transport

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._admitted = False
        self._busy = True
        self.asked = False
        """Whether a request has come whole since the last answer had gone."""
        self.answering = False
        """Whether an answer is being made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("unknown",)
        self._admitted = self._connections.came(self, str(peer[0]))
        if self._admitted:
            self._inner.connection_made(transport)
        else:
            self.cut()

    def data_received(self, data: bytes) -> None:
        self.look()
        if not self._busy:  # the first bytes of another request
            self._busy = True
            self._connections.idle(self)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if self._admitted:
            self._connections.went(self)
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def look(self) -> None:
        """Finds out whether the answer has gone, all of it."""
        if self.asked and not self.answering and not self.transport.get_write_buffer_size():
            self.asked = self._busy = False
            self._connections.idle(self)

    def cut(self) -> None:
        """Ends the connection at once, whatever has not gone."""
        self.transport.abort()


class _NoBadHttp(logging.Filter):
    """Keeps back the tracebacks of what peers send that is no HTTP, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._log = FloodLog("bad_http", BAD_HTTP_LOG_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._log.tell(problem=str(error.message)[:200])
        return False


def http_logger() -> logging.Logger:
    """The logger of the HTTP server: a peer cannot make it write a line a request."""
    logger = logging.getLogger("namesrv_console.http")
    if not logger.filters:
        logger.addFilter(_NoBadHttp())
    return logger
