"""The assembled name server: its listeners with their TLS and permits, start, background tasks, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv.app.access import Authorizer, FairShares, NamedBrokers
from namesrv.app.administration import Administration
from namesrv.app.channels import ChannelStreams, StallDetector
from namesrv.app.durable_routes import LAST_STEP_SECONDS, LAST_WRITE_SECONDS, DurableRoutes, watch_warm_up
from namesrv.app.event_log import RegistrationCounter, listen_for_warnings
from namesrv.app.upkeep import DigestSamples, SymptomCounter, drop_expired_pins, scan_for_silent_brokers
from namesrv.app.watches import WatchStreams
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.snapshot import Pins
from namesrv.core.state import NamesrvIdentity, RouteState
from namesrv.engines.api import KEEPALIVE_TIMEOUT_SECONDS, LISTENER_SECONDS, EngineServer, certificate_check
from namesrv.grpc_api.admin import AdminServicer, DiagnosticsCalls
from namesrv.grpc_api.handlers import RequestsInPieces, add_reflection, handlers_for_everybody, handlers_of_server
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv.grpc_api.route import ClusterTestLookups, LookupCalls, RouteServicer, TableCalls
from namesrv.grpc_api.streams import StreamCalls
from namesrv.metrics import Observability, Sources
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import Calls, RegistrationCalls, calls_of
from namesrv.remoting.calls import LookupCalls as RemotingLookups
from namesrv.remoting.calls import OperatorCalls as RemotingOperators
from namesrv.remoting.connection import Connections
from namesrv.server.listeners import CannotListen, build_server, listen_at, listeners_handed_over
from namesrv.settings import NamesrvSettings, changeable_texts
from namesrv.storage.data_dir import DataDir
from namesrv.storage.database import Database, format_epoch
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS, WatchedFile
from namesrv_common.process.program import return_freed_memory
from namesrv_common.process.shutdown import STEP_SECONDS, in_daemon_thread, log_end, run_step
from namesrv_common.process.systemd import feed_watchdog, tell_systemd, watchdog_seconds
from namesrv_common.server.health_service import SERVICE as HEALTH
from namesrv_common.server.health_service import HealthService
from namesrv_common.server.metrics_http import TELEMETRY_SECONDS
from namesrv_common.server.permits import OpenCalls, reloaded_permits, warn_of_permits
from namesrv_common.tls.listener_tls import ListenerTls
from namesrv_common.version import __version__

_log = structlog.get_logger(__name__)
_Status = health_pb2.HealthCheckResponse

# The services of both packages.

SERVICES = (
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"],
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    diagnostics_service_pb2.DESCRIPTOR.services_by_name["DiagnosticsService"],
)

REGISTRATION_SERVICE, ROUTE_SERVICE, ADMIN_SERVICE, DIAGNOSTICS_SERVICE = SERVICES


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_millis(self) -> int:
        return time.time_ns() // 1_000_000


# The name server's certificates and permits: read at the start, and again when their files change.


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


class NamesrvServer:
    """One name server in this process. Must be made inside the event loop that runs it."""

    def __init__(self, settings: NamesrvSettings, database: Database | None) -> None:
        """Loads what is durable, if there is a database, and binds the listener.

        Raises:
            CannotListen: The address is in use or not of this machine, or certificates or permits cannot be used.
            DataDirError: Something in the data directory cannot be read or written.
        """
        try:
            self._security = Security(settings)
            self._grpc = build_server(settings, self._security.tls)
        except ValueError as error:
            raise CannotListen(str(error)) from error
        handed_over = listeners_handed_over(settings)
        self.endpoint = listen_at("listen", settings.endpoint, self._grpc.listen, handed_over["listen"])
        clock = SystemClock()
        self._started_at_millis = clock.wall_millis()
        self._state = state = self._empty_state(settings, clock, database)
        listen_for_warnings(state)
        self._writer = TableWriter()
        self._reader = reader = Worker("reader")
        self._shares = shares = FairShares(settings.share_rules)
        self._administration = Administration(state, self._writer, database, settings, clock.wall_millis)
        self._durable = DurableRoutes(state, settings, database)
        self._pins = Pins(
            clock.monotonic, lambda: secrets.token_urlsafe(18), pins=shares.pins, revisions=shares.pinned_revisions
        )
        self._watch_streams = WatchStreams(state, self._durable.warm_up, shares=shares)
        # Peers that gave us up during a stall close their connections within the time of a ping and its answer.
        doubtful_seconds = settings.keepalive_time_millis / 1000 + KEEPALIVE_TIMEOUT_SECONDS
        self._stall_detector = StallDetector(clock.monotonic, state.grant_more_time, doubtful_seconds)
        self._channels = ChannelStreams(state, self._writer, self._stall_detector, shares.channels)
        self._cluster_test: ClusterTestLookups | None = None
        self._health = HealthService()
        self._registrations = RegistrationCounter()
        self._digest_samples = DigestSamples(
            state, reader, clock.wall_millis, lambda: changeable_texts(self._administration.in_force)
        )
        self._symptoms = SymptomCounter(state, reader, clock.monotonic)
        self._observation = self._observed(settings)
        if not self._observation.begins_traces:
            self._grpc.keep_answers_of(state, follows_traces=self._observation.telemetry is not None)
        self._authorizer = self._security.authorizer(state)
        self._remoting: Endpoint | None = None
        """Where RocketMQ's protocol is spoken."""
        self._add_services(settings, handed_over.get("remoting_listen", []))

    def _empty_state(self, settings: NamesrvSettings, clock: SystemClock, database: Database | None) -> RouteState:
        now = self._started_at_millis
        epoch = database.next_epoch(now) if database else format_epoch(now)
        return RouteState(
            NamesrvIdentity(settings.name or str(self.endpoint), epoch),
            clock,
            lambda: secrets.token_urlsafe(18),
            settings.broker_channel_expired_time_millis / 1000,
            settings.behaviour,
        )

    def _observed(self, settings: NamesrvSettings) -> Observability:
        sources = Sources(
            self._state,
            self._stall_detector,
            self._pins,
            self._watch_streams,
            self._registrations,
            self._security.tls,
            self._durable,
            self._digest_samples,
            self._symptoms,
            self._shares,
            self._grpc,
        )
        try:
            return Observability(settings, sources)
        except OSError as error:
            raise CannotListen(f"setting metrics_listen: {error}") from error
        except ValueError as error:
            raise CannotListen(str(error)) from error

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until the event is set, then shuts down. A background task that dies ends the server, too."""
        self._stall_detector.begin()
        await self._durable.begin_run()
        await self._grpc.start()
        self._observation.start()
        self._set_health()
        identity, settings = self._state.identity, self._administration.in_force
        _log.info(
            "namesrv_started",
            name=identity.name,
            epoch=identity.epoch,
            listen=str(self.endpoint),
            engine=settings.engine,
            tls="none" if not settings.listens_with_tls else "mutual" if settings.tls_client_ca else "server",
            permits=settings.permits_file and str(settings.permits_file),
            data_dir=settings.data_dir and str(settings.data_dir),
            remoting=self._remoting and str(self._remoting),
            metrics=self._observation.endpoint and str(self._observation.endpoint),
            version=__version__,
        )
        tell_systemd("READY=1")
        try:
            await run_background(stop, self._background_work())
        finally:
            await self._shut_down(orderly=stop.is_set())

    def _background_work(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._grpc.until_failed(),
            self._writer.until_failed(),
            self._stall_detector.watch(),
            self._channels.remove_brokers_of_ended(),
            self._channels.notify_of_order_config(),
            scan_for_silent_brokers(
                self._state, self._writer, self._channels, self._stall_detector, self._scan_interval_seconds
            ),
            drop_expired_pins(self._pins),
            self._security.watch(self._grpc),
            watch_warm_up(self._durable.warm_up, self._on_warm),
            self._watch_streams.notify_readers(),
            self._watch_streams.give_bookmarks(),
            self._administration.lift_ended(),
            *self._durable.tasks(),
            *((feed_watchdog(seconds),) if (seconds := watchdog_seconds()) else ()),
            *((self._digest_samples.run(), self._symptoms.run()) if self._observation.observers else ()),
            return_freed_memory(),
        ]

    def _add_services(self, settings: NamesrvSettings, remoting_sockets: list[socket.socket]) -> None:
        state, watchers, started_at_millis = self._state, self._watch_streams, self._started_at_millis
        idle_timeout, topics = settings.broker_channel_expired_time_millis, self._shares.registered_topics
        registration = RegistrationServicer(
            state, self._writer, self._channels, idle_timeout, tally=self._registrations, registered_topics=topics
        )
        warm_up, endpoints = self._durable.warm_up, settings.product_env_endpoints
        if endpoints:
            self._cluster_test = ClusterTestLookups(state, warm_up, endpoints)
        reader, streams, pins = self._reader, self._shares.snapshot_streams, self._pins
        route = RouteServicer(
            self._cluster_test or LookupCalls(state, warm_up),
            TableCalls(state, warm_up, reader, started_at_millis, self._durable.data_dir_problem),
            StreamCalls(state, warm_up, pins, watchers, reader, streams),
        )
        admin = AdminServicer(state, self._administration, self._durable.journal, watchers, reader, started_at_millis)
        services: list[tuple[ServiceDescriptor, Sequence[object]]] = [
            (REGISTRATION_SERVICE, (registration,)),
            (ROUTE_SERVICE, route),
            (ADMIN_SERVICE, (admin,)),
            (DIAGNOSTICS_SERVICE, (DiagnosticsCalls(self._stall_detector, self._registrations),)),
        ]
        if (endpoint := settings.remoting_endpoint) is not None:
            connections = Connections(self._remoting_calls(settings), self._observation.on_remoting_answer)
            listen = partial(self._grpc.listen, frames=connections)
            self._remoting = listen_at("remoting_listen", endpoint, listen, remoting_sockets)
        slow_reader_seconds = settings.slow_reader_timeout_millis / 1000
        end_of_piece = self._grpc.end_of_piece  # an engine that cuts none has large requests parsed whole
        pieces = None if end_of_piece is None else RequestsInPieces(self._writer, reader, end_of_piece)
        handlers = handlers_of_server(
            slow_reader_seconds,
            observers=self._observation.observers,
            authorizer=self._authorizer,
            shares=self._shares,
            parse_large=None if pieces is None else pieces.parsed,
        )
        for of, parts in services:
            self._grpc.add_handlers(of.full_name, handlers.of(of, parts))
        handlers = handlers_for_everybody(slow_reader_seconds, self._shares)
        self._grpc.add_handlers(HEALTH.full_name, handlers.of(HEALTH, (self._health,)))
        add_reflection(self._grpc, handlers, (of.full_name for of in (*SERVICES, HEALTH)))

    def _remoting_calls(self, settings: NamesrvSettings) -> Calls:
        gate = Gate(map(Grade, settings.remoting_allow.split(",")), self._authorizer)
        shares, elsewhere = self._shares, self._cluster_test.route_elsewhere if self._cluster_test else None
        return calls_of(
            RemotingLookups(self._state, self._reader, self._durable.warm_up, elsewhere),
            RegistrationCalls(self._state, self._writer, self._channels, self._registrations, gate, shares=shares),
            RemotingOperators(self._state, self._administration),
            gate,
            shares=shares,
        )

    def _set_health(self) -> None:
        """Sets the health. All services serve from the start, lookups unless routes are missing that others have."""
        for name in ("", *(service.full_name for service in SERVICES)):
            serves = name != ROUTE_SERVICE.full_name or self._durable.warm_up.serves()
            self._health.set(name, _Status.SERVING if serves else _Status.NOT_SERVING)

    async def _on_warm(self) -> None:
        """Reports that the name server is warm: a topic that it does not know does not exist."""
        self._set_health()
        await self._watch_streams.announce_missing()

    def _scan_interval_seconds(self) -> float:
        return self._administration.in_force.scan_not_active_broker_interval_millis / 1000

    async def _shut_down(self, *, orderly: bool) -> None:
        """Health first, then no more changes, then the streams, the calls and the write under way.

        No step keeps the next one from running, so that the snapshot file is written, unless a commit has failed.
        """
        _log.info("namesrv_stopping")
        tell_systemd("STOPPING=1")
        self._health.enter_shutdown()
        self._state.frozen = True
        await run_step("snapshot", self._durable.snapshots.write_last(LAST_WRITE_SECONDS), LAST_STEP_SECONDS)
        await run_step("streams", self._end_streams())
        grace = self._administration.in_force.shutdown_grace_millis / 1000
        await run_step("listener", self._grpc.stop(grace), grace + LISTENER_SECONDS)
        if self._cluster_test is not None:
            await run_step("cluster_test", self._cluster_test.close())
        await run_step("operators", self._administration.close(LAST_WRITE_SECONDS), LAST_STEP_SECONDS)
        await self._durable.close(orderly=orderly)
        await run_step("telemetry", in_daemon_thread("telemetry-stop", self._observation.stop), TELEMETRY_SECONDS)
        _log.info("namesrv_stopped")

    async def _end_streams(self) -> None:
        self._channels.close_all(registration_service_pb2.ChannelClosing.REASON_SHUTDOWN)
        await self._watch_streams.close()


async def run_background(
    stop: asyncio.Event, works: Iterable[Coroutine[Any, Any, None]], end_seconds: float = STEP_SECONDS
) -> None:
    """Runs all works until the event is set or one fails, and cancels them. Raises a group of their failures.

    Works that take longer than ``end_seconds`` to end are left behind.
    """
    tasks = {asyncio.create_task(work) for work in works}
    one_failed = asyncio.create_task(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
    reasons = {asyncio.create_task(stop.wait()), one_failed}
    try:
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*reasons, *tasks):
            task.cancel()
        ended, left = await asyncio.wait(tasks, timeout=end_seconds)
        for task in left:
            log_end(str(task.get_coro()), task, end_seconds)
    if failures := [error for task in ended if not task.cancelled() and (error := task.exception())]:
        raise BaseExceptionGroup("background work failed", failures)


async def serve_until(settings: NamesrvSettings, stop: asyncio.Event) -> None:
    """Serves until the event is set.

    Raises:
        CannotListen: The address, certificates or permits cannot be used.
        DataDirError: The data directory cannot be used.
    """
    with contextlib.ExitStack() as resources:
        data_dir = DataDir.open(settings.data_dir) if settings.data_dir else None
        if data_dir:
            resources.callback(data_dir.close)
        await NamesrvServer(settings, Database(data_dir.path) if data_dir else None).run(stop)
