"""A replica's server: when it takes over its leader's tables, how old they are, and whether it is ready."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial

import structlog
from grpc_health.v1 import health_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.freed_memory import GrownProcess
from groundwork.health_service import HealthService
from groundwork.metrics_http import TELEMETRY_SECONDS
from groundwork.rpc_handlers import Composition
from groundwork.shutdown import STEP_SECONDS, Background, in_daemon_thread, run_step
from groundwork.systemd import feed_watchdog, tell_systemd, watchdog_seconds
from groundwork.version import __version__
from namesrv.app.clearing_up import clear_up
from namesrv.app.cluster_test import ClusterTest
from namesrv.app.counters import FrontCounter
from namesrv.app.lookup_clients import LookupClients
from namesrv.app.operators import SettingsInForce
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.upkeep import drop_expired_pins
from namesrv.app.watches import WatchDispatcher
from namesrv.app.worker import Worker
from namesrv.core.errors import Refused, epoch_changed, registry_warming, revision_compacted
from namesrv.core.pins import Pins
from namesrv.core.policy import Clock
from namesrv.core.replica import ReplicaIntake, ReplicaTables
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch import ChangeReader
from namesrv.engines.api import LISTENER_SECONDS, forget_answers, serve_from, watch_engine
from namesrv.engines.chosen_engine import EngineMissing, choose_engine, warn_of_exposure
from namesrv.engines.grpcio import build_server
from namesrv.grpc_api.admin import AdminQueries
from namesrv.grpc_api.internal import DiagnosticsCalls, ReplicaCalls
from namesrv.grpc_api.route import RouteServicer
from namesrv.metrics import Observability, ReplicaMetrics
from namesrv.replica.leader_stream import LeaderStream
from namesrv.server.listener import (
    ADMIN_SERVICE,
    DIAGNOSTICS_SERVICE,
    REGISTRATION_SERVICE,
    REPLICA_SERVICE,
    ROUTE_SERVICE,
    SERVICES,
    CannotListen,
    Security,
    SystemClock,
    add_services,
    bind,
    follow_security,
    listen_remoting,
    tls_name,
)
from namesrv.server.replica_calls import LEADERS_CALLS, READING_CALLS, CallsOfCopy, StatusOfCopy, leaders_calls
from namesrv.settings import NamesrvSettings

# One copy of a leader's tables, with everything that answers from it. A copy lasts as long as its leader's epoch.


class LeadersWarmUp(WarmUp):
    """A copy is as warm as its leader."""

    def __init__(self, tables: ReplicaTables, clock: Clock) -> None:
        super().__init__(tables.state, clock, 0.0)
        self._copy = tables

    def is_warm(self) -> bool:
        return self._copy.warm


class Copy:
    """Tables, watches, pins and what answers calls. Must be made inside the event loop, once the tables are whole."""

    def __init__(
        self,
        tables: ReplicaTables,
        clock: Clock,
        settings: SettingsInForce,
        *,
        reader: Worker,
        shares: FairShares,
        product_env: ClusterTest | None,
        clients: LookupClients,
        started_at_millis: int,
    ) -> None:
        self.tables = tables
        state = tables.state
        self.warm_up = LeadersWarmUp(tables, clock)
        self.watchers = WatchDispatcher(state, self.warm_up, clock, shares=shares, is_copy=True)
        self._pins = Pins(clock.monotonic, lambda: secrets.token_urlsafe(18), shares.of_pins)
        route = RouteServicer.of(
            state,
            self.warm_up,
            self._pins,
            self.watchers,
            reader=reader,
            shares=shares,
            product_env=product_env,
            clients=clients,
            started_at_millis=started_at_millis,
            data_dir_problem=lambda: None,  # a copy keeps nothing on disk
        )
        self.queries = AdminQueries.of(
            state, settings, self.watchers, None, reader, started_at_millis=started_at_millis
        )
        self.route = Composition.of(ROUTE_SERVICE.methods, route).behaviours
        """What answers the calls of RouteService, by their names."""
        self.admin = Composition.of(READING_CALLS, self.queries).behaviours
        """What answers those of AdminService that only read."""
        replica = ReplicaCalls(state, self.watchers, reader, shares.snapshot_streams)
        self.replica = Composition.of(REPLICA_SERVICE.methods, (replica,)).behaviours
        """What answers those of ReplicaService."""

    async def run(self) -> None:
        """Runs the background work of the copy while it is served. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watchers.tell_changes())
            tasks.create_task(self.watchers.give_bookmarks())
            tasks.create_task(drop_expired_pins(self._pins))
            tasks.create_task(clear_up(self.tables.state.leftovers))

    async def retire(self, successor: RouteState) -> None:
        """Tells all readers of changes to start again, at the copy that is served now."""
        self._pins.close()
        log, identity = self.tables.state.change_log, self.tables.state.identity

        def failure_of(reader: ChangeReader) -> Refused:
            if successor.identity.epoch != identity.epoch:
                return epoch_changed(identity.epoch, successor.identity.epoch)
            return revision_compacted(
                max(0, reader.revision), successor.change_log.compacted_revision, log.last.revision
            )

        await self.watchers.retire(failure_of)


# The assembled read-only copy of another name server: start, background tasks, health, shutdown.

HEALTH_SECONDS = 0.5
"""Pause between two looks at whether the copy has become too old."""

_log = structlog.get_logger(__name__)
_Status = health_pb2.HealthCheckResponse


class ReplicaServer:
    """One read-only copy in this process. Must be made inside the event loop that runs it."""

    def __init__(self, settings: NamesrvSettings) -> None:
        """Binds the listener. Raises CannotListen, also if certificates or permits cannot be used."""
        self._settings = settings
        try:
            self._engine = choose_engine(settings.engine, settings.endpoint)
            warn_of_exposure(self._engine, settings.endpoint)
            self._security = Security(settings)
            credentials = follow_security(settings)
        except (ValueError, EngineMissing) as error:
            raise CannotListen(str(error)) from error
        self._grpc = build_server(self._engine.name, settings, self._security.tls)
        self.endpoint = settings.endpoint._replace(port=bind(self._grpc, settings, self._security.tls))
        self._name = settings.name or str(self.endpoint)
        self._clock = SystemClock()
        self._started_at_millis = self._clock.wall_millis()
        self._stall_detector = StallDetector(self._clock.monotonic, lambda _: None, 0.0)
        self._in_force = SettingsInForce(settings, settings)
        self._reader = Worker("reader")
        self._product_env = ClusterTest.of(settings, self._clock.monotonic)
        self._clients = LookupClients(
            partial(forget_answers, self._grpc), self._clock.monotonic, self._clock.wall_millis
        )
        self._stream = LeaderStream(
            [str(leader) for leader in settings.leaders],
            self._new_intake,
            self._on_bookmark,
            security=credentials,
        )
        self._shares = FairShares.of(settings.share_rules)
        self._copy: Copy | None = None
        self._copies = 0
        self._current_at: float | None = None
        """When the copy was last known to be as its leader, by the monotonic clock."""
        self._running: dict[Copy, asyncio.Task[None]] = {}
        self._background = Background()
        self._stopping = False
        self._health = HealthService()
        self._serves: bool | None = None
        self._was_warm = False
        self._leader_warms = False
        """Whether a warm copy of the time before is served, because the leader is warming up."""
        self._observation = self._observed()
        self._authorizer = self._security.authorizer(None)
        self._front = listen_remoting(settings, self._authorizer, FrontCounter())
        self._add_services()

    def _observed(self) -> Observability:
        try:
            return Observability(
                self._settings,
                lambda registry: ReplicaMetrics(registry, self, self._stall_detector, self._shares),
                self._grpc,
                self._engine,
            )
        except OSError as error:
            raise CannotListen(f"setting metrics_listen: {error}") from error
        except ValueError as error:
            raise CannotListen(str(error)) from error

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until the event is set, then shuts down. A background task that dies ends the server, too."""
        self._stall_detector.begin()
        self._observation.start()
        self._set_health()
        await self._start()
        for work in (
            watch_engine(self._grpc),
            self._reader.watch(),
            self._stall_detector.watch(),
            self._security.watch(),
            self._stream.run(),
            self._keep_health(),
            *((feed_watchdog(seconds),) if (seconds := watchdog_seconds()) else ()),
            *(() if self._engine.name == "native" else (GrownProcess().run(),)),
            *((self._front.run(),) if self._front is not None else ()),
        ):
            self._background.begin(work)
        try:
            await self._background.run_until(stop)
        finally:
            await self._shut_down()

    async def _start(self) -> None:
        await self._grpc.start()
        settings = self._settings
        _log.info(
            "namesrv_started",
            name=self._name,
            follows=[str(leader) for leader in settings.leaders],
            listen=str(self.endpoint),
            engine=self._engine.name,
            engine_because=self._engine.why,
            tls=tls_name(settings),
            permits=settings.permits_file and str(settings.permits_file),
            remoting=self._front and str(self._front.endpoint),
            metrics=self._observation.endpoint and str(self._observation.endpoint),
            version=__version__,
        )
        tell_systemd("READY=1")

    # Read by the metrics

    @property
    def tables(self) -> ReplicaTables | None:
        """The tables that are served; None if there are none yet."""
        return self._copy.tables if self._copy else None

    def status(self) -> pb.ReplicaStatus:
        """The leader that it follows, and how far behind it is."""
        status = pb.ReplicaStatus(
            leader=self._stream.leader,
            leader_name=self._stream.leader_name,
            leader_connected=not self._stream.problem,
            problem=self._stream.problem or ("the leader is warming up" if self._leader_warms else ""),
            copies=self._copies,
        )
        behind = self._behind_seconds()
        if behind is not None:
            status.behind_millis = round(behind * 1000)
        return status

    def problem(self) -> str | None:
        """Why lookups cannot rely on the copy; None if they can."""
        behind, stale_seconds = self._behind_seconds(), self._settings.follow_stale_millis / 1000
        if self._stopping:
            return "shutting down"
        if self._copy is None or behind is None:
            return f"there is no copy of {self._stream.leader} yet: {self._stream.problem}"
        if not self._copy.tables.warm:
            return "warming: the leader's brokers of the time before may be missing"
        if behind > stale_seconds:
            return f"the copy is {behind:.0f} s old, at most {stale_seconds:g} s (follow_stale_millis)"
        return None

    def _behind_seconds(self) -> float | None:
        return None if self._current_at is None else max(0.0, self._clock.monotonic() - self._current_at)

    def _new_intake(self) -> ReplicaIntake:
        return ReplicaIntake(lambda identity: ReplicaTables(identity, self._clock), self._name)

    async def _on_bookmark(self, tables: ReplicaTables) -> None:
        """A copy, the served one or the next one, has just caught up with its leader."""
        if self._copy is None or self._copy.tables is not tables:
            if not self._takes_over(tables):
                self._leader_warms = True
                return
            await self._install(tables)
        self._leader_warms = False
        self._current_at = self._clock.monotonic()
        assert self._copy is not None, "it is installed"
        if tables.warm and not self._was_warm:
            self._was_warm = True
            await self._copy.watchers.announce_missing()
        self._set_health()

    def _takes_over(self, tables: ReplicaTables) -> bool:
        """Whether a new copy is better than the one that is served: a leader that has just started may know little."""
        behind = self._behind_seconds()
        too_old = behind is None or behind > self._settings.follow_stale_millis / 1000
        return self._copy is None or tables.warm or too_old or not self._copy.tables.warm

    async def _install(self, tables: ReplicaTables) -> None:
        before, self._copy = (
            self._copy,
            Copy(
                tables,
                self._clock,
                self._in_force,
                reader=self._reader,
                shares=self._shares,
                product_env=self._product_env,
                clients=self._clients,
                started_at_millis=self._started_at_millis,
            ),
        )
        if not self._observation.begins_traces:
            serve_from(self._grpc, tables.state)
        self._copies += 1
        self._was_warm = tables.warm
        if self._front is not None:
            self._front.serve(
                tables.state,
                self._copy.warm_up,
                self._copy.queries,
                self._reader,
                clients=self._clients,
                product_env=self._product_env,
                leader=lambda: self._stream.leader,
            )
        self._running[self._copy] = self._background.begin(self._copy.run())
        _log.info(
            "copy_served",
            leader=self._stream.leader,
            epoch=tables.state.identity.epoch,
            revision=tables.state.revision,
            topics=len(tables.state.tables.topic_queue_table),
            warm=tables.warm,
        )
        if before is not None:
            await before.retire(tables.state)
            self._running.pop(before).cancel()

    def _add_services(self) -> None:
        leader = lambda: self._stream.leader  # noqa: E731 - it changes
        status = StatusOfCopy(
            self._name,
            self._started_at_millis,
            lambda: self._copy.route if self._copy else None,
            self.status,
        )
        others = [method for method in ROUTE_SERVICE.methods if not hasattr(status, method.name)]
        route = (CallsOfCopy(others, lambda: self._served().route), status)
        registration = (leaders_calls(REGISTRATION_SERVICE.methods, leader),)
        reading = CallsOfCopy(READING_CALLS, lambda: self._served().admin)
        admin = (reading, leaders_calls(LEADERS_CALLS, leader))
        add_services(
            self._grpc,
            self._settings,
            [
                (REGISTRATION_SERVICE, registration),
                (ROUTE_SERVICE, route),
                (ADMIN_SERVICE, admin),
                (REPLICA_SERVICE, (CallsOfCopy(REPLICA_SERVICE.methods, lambda: self._served().replica),)),
                (DIAGNOSTICS_SERVICE, (DiagnosticsCalls(self._stall_detector, self._engine, self._clients),)),
            ],
            self._health,
            observers=self._observation.observers,
            authorizer=self._authorizer,
            shares=self._shares,
        )
        self._security.on_permits_reloaded = getattr(self._grpc, "forget_callers", self._security.on_permits_reloaded)

    def _served(self) -> Copy:
        """The current copy. Raises REGISTRY_WARMING if there is none yet."""
        if self._copy is None:
            raise registry_warming(f"anything: there is no copy of {self._stream.leader}")
        return self._copy

    async def _keep_health(self) -> None:
        """Checks now and then whether the copy has become too old. Runs until cancelled."""
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            self._set_health()

    def _set_health(self) -> None:
        """Lookups are served as long as there is a copy to rely on; registrations never are."""
        serves = self.problem() is None
        if serves == self._serves:
            return
        if self._serves is not None:
            _log.info("copy_can_be_relied_on" if serves else "copy_cannot_be_relied_on", problem=self.problem())
        self._serves = serves
        needs_copy = {ROUTE_SERVICE.full_name, REPLICA_SERVICE.full_name}
        for name in ("", *(service.full_name for service in SERVICES)):
            is_serving = serves if name in needs_copy else name != REGISTRATION_SERVICE.full_name
            self._health.set(name, _Status.SERVING if is_serving else _Status.NOT_SERVING)

    async def _shut_down(self) -> None:
        """Health first, then the streams and the calls."""
        _log.info("namesrv_stopping")
        tell_systemd("STOPPING=1")
        self._stopping = True
        self._health.enter_shutdown()
        if self._copy is not None:
            self._copy.tables.state.frozen = True
            await run_step("streams", self._copy.watchers.close())
        grace = self._settings.shutdown_grace_millis / 1000
        if self._front is not None:
            await run_step("remoting", self._front.close(grace), grace + STEP_SECONDS)
        await run_step("listener", self._grpc.stop(grace), grace + LISTENER_SECONDS)
        if self._product_env is not None:
            await run_step("product_env", self._product_env.close())
        await run_step("telemetry", in_daemon_thread("telemetry-stop", self._observation.stop), TELEMETRY_SECONDS)
        _log.info("namesrv_stopped")
