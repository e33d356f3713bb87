"""The listeners of a name server, with their TLS and permits."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import structlog
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv.app.access import Authorizer, NamedBrokers
from namesrv.core.state import RouteState
from namesrv.engines.api import EngineServer, certificate_check
from namesrv.settings import NamesrvSettings
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS, WatchedFile
from namesrv_common.process.shutdown import in_daemon_thread
from namesrv_common.process.systemd import check_bindable, listeners_handed_over
from namesrv_common.server.open_calls import OpenCalls
from namesrv_common.server.permits import reloaded_permits, warn_of_permits
from namesrv_common.tls.listener_tls import ListenerTls

# The listeners: their ports, and the services of both packages.

SERVICES = (
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"],
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    diagnostics_service_pb2.DESCRIPTOR.services_by_name["DiagnosticsService"],
)

REGISTRATION_SERVICE, ROUTE_SERVICE, ADMIN_SERVICE, DIAGNOSTICS_SERVICE = SERVICES


class CannotListen(Exception):
    """The address cannot be listened on, or not with these certificates and permits."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_millis(self) -> int:
        return time.time_ns() // 1_000_000


def systemd_listeners(settings: NamesrvSettings) -> dict[str, list[socket.socket]]:
    """Returns the sockets that systemd hands over, for ``listen`` and for ``remoting_listen``.

    Raises:
        CannotListen: A descriptor is not a listening socket, or not at either address.
    """
    listens = {"listen": settings.endpoint}
    if settings.remoting_endpoint is not None:
        listens["remoting_listen"] = settings.remoting_endpoint
    try:
        return listeners_handed_over(listens)
    except ValueError as error:
        raise CannotListen(f"socket activation: {error}") from error


def listen_at(
    setting: str,
    endpoint: Endpoint,
    listen: Callable[[str, list[socket.socket]], int],
    handed_over: list[socket.socket],
) -> Endpoint:
    """Has a server listen at an endpoint, on systemd's sockets if it hands any over; returns it with its port.

    Raises:
        CannotListen: The port is in use, or the address is not this machine's, or the engine takes no sockets.
    """
    try:
        if not handed_over:
            check_bindable(endpoint)
        return endpoint._replace(port=listen(str(endpoint), handed_over))
    except (RuntimeError, OSError, ValueError) as error:
        what = "socket activation" if handed_over else f"setting {setting}"
        raise CannotListen(f"{what}: {error}") from error


# The name server's certificates and permits: read at the start, and again when their files change.

_log = structlog.get_logger(__name__)


class Security:
    """The certificates of the listener, and the permits of its callers."""

    def __init__(self, settings: NamesrvSettings) -> None:
        """Reads the files. Raises ValueError, which names the file and says why, if one cannot be used."""
        self.tls: ListenerTls | None = settings.listener_tls(certificate_check(settings))
        """None without TLS."""
        self._open_calls = OpenCalls()
        path = settings.permits_file
        self._permits = reloaded_permits(path) if path else None
        if not settings.endpoint.is_loopback and not settings.listens_with_tls:
            what = "everybody on the network can read and change what is said here"
            _log.warning("listener_without_tls", listen=settings.listen, problem=what)
        if self._permits is not None:
            warn_of_permits(self._permits.value, with_tls=settings.listens_with_tls, client_ca=settings.tls_client_ca)

    def authorizer(self, state: RouteState) -> Authorizer | None:
        """The authorizer with the permits; None if there are none and everybody may do everything."""
        permits = self._permits
        if permits is None:
            return None
        return Authorizer(lambda: permits.value, NamedBrokers(state).of, open_calls=self._open_calls)

    async def watch(self, server: EngineServer) -> None:
        """Looks at the files every second. Runs until cancelled.

        The server shows changed certificates. Changed permits end the open calls that they do not admit.
        """
        while self.tls is not None or self._permits is not None:
            await asyncio.sleep(CHECK_SECONDS)
            if await _is_read_again(self.tls):
                server.show_certificates()
            if await _is_read_again(self._permits):
                server.forget_callers()
                await self._open_calls.check_again()


async def _is_read_again(file: WatchedFile[Any] | None) -> bool:
    """Looks at a file in a thread, as reading many permits takes a while; returns whether it has another value."""
    if file is None:
        return False
    before = file.generation
    await in_daemon_thread("watched-files", file.refreshed)  # a disk that hangs must not keep the process
    return file.generation != before
