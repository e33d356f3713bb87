"""The gRPC listener of a name server, with its TLS and permits."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable

import structlog
from google.protobuf.descriptor import ServiceDescriptor
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv.app.access import Authorizer, NamedBrokers
from namesrv.app.quotas import FairShares
from namesrv.core.state import RouteState
from namesrv.engines.api import EngineServer, FrameService
from namesrv.engines.factory import certificate_check
from namesrv.error_codes import FAILURES
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.grpc_api.reflection import add_reflection
from namesrv.limits import MAX_MESSAGE_BYTES
from namesrv.remoting.connection import REQUESTS, Connections
from namesrv.remoting.wire import GO_AWAY
from namesrv.settings import NamesrvSettings
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS
from namesrv_common.process.shutdown import in_daemon_thread
from namesrv_common.process.systemd import check_bindable, listeners_handed_over
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.health_service import SERVICE as HEALTH_SERVICE
from namesrv_common.server.health_service import HealthService, ShareGate
from namesrv_common.server.open_calls import OpenCalls
from namesrv_common.server.permits import reloaded_permits, warn_of_permits
from namesrv_common.server.rpc_handlers import CallHandlers, ParseLarge
from namesrv_common.tls.listener_tls import ListenerTls

# The listener: its port, the services of both packages, and the services that every gRPC server has.

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


def bind(server: EngineServer, settings: NamesrvSettings, handed_over: list[socket.socket]) -> int:
    """Has a server listen where the settings say, on systemd's sockets if it hands any over; returns the port.

    Raises:
        CannotListen: The port is in use, or the address is not this machine's, or the engine takes no sockets.
    """
    try:
        if not handed_over:
            check_bindable(settings.endpoint)
        return server.listen(str(settings.endpoint), handed_over)
    except (RuntimeError, OSError, ValueError) as error:
        what = "socket activation" if handed_over else "setting listen"
        raise CannotListen(f"{what}: {error}") from error


def add_services(
    server: EngineServer,
    settings: NamesrvSettings,
    services: Iterable[tuple[ServiceDescriptor, Iterable[object]]],
    health: HealthService,
    *,
    observers: tuple[CallObserver, ...],
    authorizer: Authorizer | None,
    shares: FairShares,
    parse_large: ParseLarge | None = None,
) -> None:
    """Adds the services of both packages, health and reflection.

    Args:
        services: The services, each with the parts that answer its calls (``namesrv_common.server.rpc_handlers``).
        authorizer: Decides which caller may make which call. None admits every call.
        parse_large: Parses large requests. None parses each in one step.
    """
    handlers = handlers_of_server(
        settings.slow_reader_timeout_millis / 1000,
        observers=observers,
        authorizer=authorizer,
        shares=shares,
        parse_large=parse_large,
    )
    for service, parts in services:
        handlers.add_service(server, service, parts)
    gate = ShareGate(shares.probes)
    of_health = CallHandlers(
        FAILURES,
        settings.slow_reader_timeout_millis / 1000,
        gate_of=lambda _: gate,
        max_request_bytes=lambda _: MAX_MESSAGE_BYTES,
    )
    of_health.add_service(server, HEALTH_SERVICE, (health,))
    names = [service.full_name for service in SERVICES]
    add_reflection(server, [*names, HEALTH_SERVICE.full_name], ShareGate(shares.reflections))


def listen_remoting(
    server: EngineServer, settings: NamesrvSettings, connections: Connections, handed_over: list[socket.socket]
) -> Endpoint:
    """Has a server listen for RocketMQ's protocol, on systemd's sockets if it hands any over; returns where.

    Raises:
        CannotListen: The port is in use, or the address is not this machine's, or the engine has no such protocol.
    """
    endpoint = settings.remoting_endpoint
    assert endpoint is not None, "it is made where it listens"
    try:
        if not handed_over:
            check_bindable(endpoint)
        service = FrameService(connections, REQUESTS, GO_AWAY)
        port = server.serve_frames(service, str(endpoint), handed_over, settings.remoting_tls_mode)
    except (OSError, ValueError) as error:
        raise CannotListen(f"setting remoting_listen: {error}") from error
    return endpoint._replace(port=port)


def tls_name(settings: NamesrvSettings) -> str:
    if not settings.listens_with_tls:
        return "none"
    return "server" if settings.tls_client_ca is None else "mutual"


# The name server's certificates and permits: read at the start, and again when their files change.

_log = structlog.get_logger(__name__)


class Security:
    """The certificates of the listener, and the permits of its callers."""

    def __init__(self, settings: NamesrvSettings) -> None:
        """Reads the files. Raises ValueError, which names the file and says why, if one cannot be used."""
        self.tls: ListenerTls | None = settings.listener_tls(certificate_check(settings))
        """None without TLS."""
        self.on_permits_reloaded: Callable[[], None] = lambda: None
        """Called, in any thread, when permits were read anew."""
        self._open_calls = OpenCalls()
        path = settings.permits_file
        self._permits = reloaded_permits(path, self._permits_reloaded) if path else None
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

    async def watch(self) -> None:
        """Looks at the files every second, in a thread: reading many permits takes a while. Runs until cancelled.

        Changed permits end the open calls that they do not admit.
        """
        while self.tls is not None or self._permits is not None:
            await asyncio.sleep(CHECK_SECONDS)
            before = self._generation()
            await in_daemon_thread("watched-files", self._look)  # a disk that hangs must not keep the process
            if self._generation() != before:
                await self._open_calls.check_again()

    def _generation(self) -> int:
        return 0 if self._permits is None else self._permits.generation

    def _permits_reloaded(self) -> None:
        self.on_permits_reloaded()  # assigned after the start

    def _look(self) -> None:
        if self.tls is not None:
            self.tls.refreshed()
        if self._permits is not None:
            self._permits.refreshed()
