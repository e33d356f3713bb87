"""The server of the page: uvicorn, bounded."""

from __future__ import annotations

import asyncio
from asyncio import create_task
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from namesrv_common.endpoints import Endpoint
from namesrv_common.process.logs import configure_logs
from namesrv_common.process.program import stop_event
from namesrv_common.process.systemd import bound_socket, reload_on_hangup
from nsctl.console.observer import CALL_SECONDS, Observer
from nsctl.console.pages import Pages
from nsctl.session import Session, name_servers_at

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LIMITS: Any = {"limit_concurrency": 200, "h11_max_incomplete_event_size": 16_384, "timeout_graceful_shutdown": 3}
HEAD_SECONDS = 10.0
"""Time for the head of a request, from the beginning of the connection or from the response before it."""


class BoundedHead(H11Protocol):
    """Closes a connection that sends no whole head of a request in time: uvicorn bounds only its size."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._close_without_head_after, None)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        self.loop.call_later(HEAD_SECONDS, self._close_without_head_after, answered)

    def _close_without_head_after(self, answered: object) -> None:
        if self.cycle is answered:
            self.transport.abort()


SERVER: Any = {"http": BoundedHead, "ws": "none", "lifespan": "off", "log_config": None, "log_level": "warning"}


class _Server(uvicorn.Server):
    """Leaves signals to the event that the program waits for."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(session: Session, listen: Endpoint, *, behind_proxy: bool) -> None:
    """Serves the page until SIGTERM or SIGINT. Raises OSError if it cannot listen."""
    endpoints = [server.endpoint for server in session.servers]
    with bound_socket(listen) as listener, name_servers_at(endpoints, CALL_SECONDS, session.security) as servers:
        configure_logs("text", "info")
        reload_on_hangup()
        stop, log, at = stop_event(), structlog.get_logger("nsctl.console"), Endpoint(*listener.getsockname()[:2])
        observers = [Observer(server) for server in servers]
        pages = Pages(observers)
        # Another site's name must not be pointed at loopback (DNS rebinding). A proxy has a name of its own.
        hosts = ["*"] if behind_proxy else ["localhost", "127.0.0.1", "::1", "[::1]", listen.host]
        headers = list(HEADERS.items())
        config = uvicorn.Config(
            pages.application(hosts), headers=headers, server_header=False, access_log=False, **LIMITS, **SERVER
        )
        server = _Server(config)
        serving, stopped = create_task(server.serve([listener])), create_task(stop.wait())
        background = [create_task(work) for work in (pages.compare(), *(one.run() for one in observers))]
        log.info("console_started", page=f"http://{at}/", namesrv=[str(endpoint) for endpoint in endpoints])
        if behind_proxy:
            log.warning("behind_proxy", advice="the proxy must authenticate: the page asks nobody who they are")
        await asyncio.wait({serving, stopped, *background}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        for work in background:
            if work.done():
                work.result()  # raises: without it, the page would show old state
            work.cancel()
