"""Protection of the page: checks of requests, bounds and deadlines of connections, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import NoReturn, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from groundwork.endpoints import is_ip_address
from groundwork.flood_log import FloodLog
from groundwork.places import PlaceRules, Places, owner_of
from nsctl.console.observer import Fleet

# Checks of every request, and the headers of every answer to a browser.

ACTION_HEADER = "X-Namesrv-Console"
"""Must be there on whatever changes something: no form or link of another page can send it."""

_PORT = re.compile(r"(:[0-9]{1,5})?")

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # Text that becomes markup in a script is an error in the browser, whoever wrote the script.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer."""


def problem(status: int, reason: str, message: str) -> web.Response:
    """An error as the page gets it."""
    return web.json_response({"problem": {"reason": reason, "message": message}}, status=status)


def check_requests(
    host_names: Collection[str], refusal: Callable[[web.Request], web.Response | None] = lambda _: None
) -> Middleware:
    """Makes the check of every request.

    Args:
        host_names: Names, besides localhost and addresses, by which browsers may reach the page. Another site's name
            that points here (DNS rebinding) makes a browser take this page for that site's; an address cannot.
        refusal: Returns the answer to a caller that has not logged in, or None to go on. The page itself, which holds
            nothing, is for everybody.
    """
    allowed = {"localhost", *(name.lower().rstrip(".") for name in host_names)}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = _refused(request, allowed)
        if answer is None and request.path.startswith("/api/"):
            answer = refusal(request)
        if answer is None:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = problem(error.status, error.reason.upper().replace(" ", "_"), error.text or error.reason)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    return check


def _refused(request: web.Request, allowed: Collection[str]) -> web.StreamResponse | None:
    host = _host_of(request.host)
    if host not in allowed and not is_ip_address(host):
        return problem(421, "HOST_NOT_ALLOWED", f"the host name {host[:255]!r} is not allowed; see --host-name")
    if request.method in ("GET", "HEAD"):
        return None
    foreign = _why_foreign(request)
    if foreign is not None:
        return problem(403, "NOT_FROM_THIS_PAGE", foreign)
    if request.content_type != "application/json":
        return problem(415, "NOT_JSON", "the request is not application/json")
    return None


def _why_foreign(request: web.Request) -> str | None:
    """Why a request that changes something was not sent by our page; None if it was."""
    if request.headers.get(ACTION_HEADER) != "1":
        return f"the header {ACTION_HEADER} is missing"
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return "the request comes from another site"
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.host.lower():
        return f"the request comes from {origin[:255]!r}"
    return None


def _host_of(header: str) -> str:
    """The host without its port, lower case; brackets of an IPv6 address stay off."""
    if header.startswith("["):
        host, closed, port = header[1:].partition("]")
        return host.lower() if closed and _PORT.fullmatch(port) else header
    return header.partition(":")[0].lower().rstrip(".")


# Connections to the page: bounded in all and by address, with a deadline for each request and its answer.

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
    logger = logging.getLogger("nsctl.console.http")
    if not logger.filters:
        logger.addFilter(_NoBadHttp())
    return logger


# Server-sent events, which tell pages that there is something new. The pages then ask for it.

MAX_VIEWERS = 200
"""Most pages that are told at once; each costs a connection and a task."""

MAX_ENDING = 50
"""Most streams beyond that, of those that are told to end."""

QUIET_SECONDS = 10.0
"""Something is sent at least so often: a page, and a proxy between, sees that the console lives."""

WRITE_SECONDS = 10.0
"""How long a page may take to read one event; then it is cut, and comes back by itself."""

CHECK_SECONDS = 1.0
"""Pause between two looks at whether the reader of a stream may still read it."""

LEAST_PAUSE_SECONDS = 0.5
"""Pause after an event: pages ask for what is new after each."""


class Events:
    """The event streams of all pages."""

    def __init__(self) -> None:
        self._viewers: dict[asyncio.Event, str] = {}
        """Each with what ends it, and whose it is; the oldest first."""
        self._closing = asyncio.Event()

    async def handle(
        self, request: web.Request, fleet: Fleet, may_read: Callable[[], bool] = lambda: True
    ) -> web.StreamResponse:
        """One page's stream of news of a fleet; lasts until the page goes away or the console ends.

        Args:
            may_read: Whether who asked may still read it; the stream ends within a second after that changes.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            self._end_one()
        if len(self._viewers) >= MAX_VIEWERS + MAX_ENDING:
            return problem(503, "TOO_MANY_VIEWERS", f"{MAX_VIEWERS} pages are open already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        ended = asyncio.Event()
        if self._closing.is_set():
            ended.set()
        self._viewers[ended] = owner_of(request.remote or "?")
        checking = asyncio.create_task(_end_unless(may_read, ended))
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._tell(response, fleet, ended)
        finally:
            checking.cancel()
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


async def _end_unless(may_read: Callable[[], bool], ended: asyncio.Event) -> None:
    """Ends a stream once its reader may not read it."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if not may_read():
            ended.set()
            return
