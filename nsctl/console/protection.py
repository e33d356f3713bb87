"""Protection of the page: checks of requests, bounds and deadlines of connections, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from groundwork.endpoints import is_ip_address, owner_of
from groundwork.flood_log import FloodLog
from groundwork.http_connections import HttpConnections
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

MAX_CONNECTIONS, MAX_CONNECTIONS_BY_ADDRESS = 2_048, 512
"""Connections in all, and of one address, without event streams: a browser has six, and a proxy in front has those of
all its viewers."""

REQUEST_SECONDS = 30.0
"""Time for a request, for its answer, and until the next request."""

WAITING_CONNECTIONS = 64
"""Connections that the kernel keeps until they are taken, and that one turn of the event loop takes: an eighth of an
address's, so that a newcomer has asked before a flood from its address ends its connection."""

BAD_HTTP_LOG_SECONDS = 60.0
"""Between two lines about peers that speak no HTTP."""


def page_connections() -> HttpConnections:
    """The account of the connections to the page."""
    return HttpConnections(most=MAX_CONNECTIONS, most_by_address=MAX_CONNECTIONS_BY_ADDRESS, seconds=REQUEST_SECONDS)


class PageProtocol(web.RequestHandler):
    """One connection to the page, as aiohttp serves it, counted from its begin to its end."""

    __slots__ = ("_connections",)

    def __init__(self, server: web.Server, connections: HttpConnections) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, logger=http_logger())  # type: ignore[arg-type]  # no access log
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.renew(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.transport is not None:
            self._connections.remove(self.transport)
        super().connection_lost(exc)


def keep_deadlines(connections: HttpConnections) -> Middleware:
    """Makes what gives a connection its time again at each request and answer."""

    @web.middleware
    async def keep(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            connections.renew(request.transport)
        try:
            return await handler(request)
        finally:
            if request.transport is not None:
                connections.renew(request.transport)

    return keep


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
    """The event streams of all pages. Their connections last, and are bounded here."""

    def __init__(self, connections: HttpConnections) -> None:
        self._connections = connections
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
        if request.transport is not None:
            self._connections.remove(request.transport)
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
