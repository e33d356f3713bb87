"""The assembled name server: start, background tasks, shutdown."""

from __future__ import annotations

import asyncio
import secrets
import time

import structlog
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from namesrv_api.v1 import (
    admin_service_pb2,
    registration_service_pb2,
    route_service_pb2,
)

from groundwork.listening import check_bindable
from groundwork.version import __version__
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.core.route_state import NamesrvIdentity
from namesrv.data_dir import DataDir, format_epoch
from namesrv.kv_config_file import KvConfigFile
from namesrv.server.admin_servicer import AdminServicer
from namesrv.server.channel_streams import ChannelStreams
from namesrv.server.engines import build_server
from namesrv.server.event_log import log_removed
from namesrv.server.kv_config_store import KvConfigStore
from namesrv.server.own_stalls import OwnStalls
from namesrv.server.registration_parts import RegistrationParts
from namesrv.server.registration_servicer import RegistrationServicer
from namesrv.server.route_servicer import RouteServicer
from namesrv.server.rpc import add_service
from namesrv.server.table_writer import TableWriter
from namesrv.settings import NamesrvSettings

FIRST_SCAN_SECONDS = 5.0
"""When the first scan for silent brokers runs (RocketMQ: NamesrvController.initialize)."""

LAST_WRITE_SECONDS = 5.0
"""How long the disk may take for the write under way at shutdown."""

SERVICES = (
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"],
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
)

_log = structlog.get_logger(__name__)
_ChannelClosing = registration_service_pb2.ChannelClosing


class CannotListen(Exception):
    """The address cannot be listened on."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds; never goes back."""
        return time.monotonic()

    def wall_millis(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


class NamesrvServer:
    """One name server in this process. Must be made inside the event loop that runs it."""

    def __init__(self, settings: NamesrvSettings, data_dir: DataDir | None) -> None:
        """Binds the listener.

        Raises:
            CannotListen: The address is in use or not of this machine.
            DataDirError: The epoch or the KV configuration cannot be read or written.
        """
        self._settings = settings
        self._grpc = build_server(settings)
        self.endpoint = settings.endpoint._replace(port=self._bind())
        clock = SystemClock()
        now = self._started_at_millis = clock.wall_millis()
        epoch = data_dir.next_epoch(now) if data_dir else format_epoch(now)
        identity = NamesrvIdentity(settings.name or str(self.endpoint), epoch)
        self._expired_time = settings.broker_channel_expired_time_millis / 1000
        self._manager = RouteInfoManager(identity, clock, lambda: secrets.token_urlsafe(18), self._expired_time)
        self._writer = TableWriter()
        self._kv_config = KvConfigStore(self._manager, KvConfigFile(data_dir.path) if data_dir else None)
        # Peers that gave up on us during a stall show it within the time of a ping and its answer.
        doubtful_seconds = (settings.keepalive_time_millis + settings.keepalive_timeout_millis) / 1000
        self._own_stalls = OwnStalls(clock.monotonic, self._manager.grant_more_time, doubtful_seconds)
        self._channels = ChannelStreams(self._manager, self._writer, self._own_stalls)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._add_services(RegistrationParts(clock.monotonic))

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until the event is set, then shuts down. A background task that dies ends the server, too."""
        await self._grpc.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        identity, settings = self._manager.identity, self._settings
        _log.info(
            "namesrv_started",
            name=identity.name,
            epoch=identity.epoch,
            listen=str(self.endpoint),
            engine=settings.engine,
            data_dir=settings.data_dir and str(settings.data_dir),
            version=__version__,
        )
        try:
            async with asyncio.TaskGroup() as background:
                tasks = [
                    background.create_task(self._own_stalls.watch()),
                    background.create_task(self._channels.remove_brokers_of_ended()),
                    background.create_task(self._kv_config.print_all_periodically()),
                ]
                if settings.scan_not_active_broker_interval_millis:
                    tasks.append(background.create_task(self._scan_not_active_broker()))
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self._shut_down()

    def _bind(self) -> int:
        listen = self._settings.endpoint
        try:
            check_bindable(listen)
            return self._grpc.add_insecure_port(str(listen))
        except (RuntimeError, OSError) as error:
            raise CannotListen(f"setting listen: {error}") from error

    def _add_services(self, parts: RegistrationParts) -> None:
        registration, route, admin = SERVICES
        idle_timeout_millis = self._settings.broker_channel_expired_time_millis
        servicer = RegistrationServicer(self._manager, self._writer, self._channels, parts, idle_timeout_millis)
        slow_reader_seconds = self._settings.slow_reader_timeout_millis / 1000
        add_service(self._grpc, registration, servicer, slow_reader_seconds)
        add_service(
            self._grpc,
            route,
            RouteServicer(self._manager, self._own_stalls, self._started_at_millis),
            slow_reader_seconds,
        )
        add_service(self._grpc, admin, AdminServicer(self._manager, self._kv_config), slow_reader_seconds)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        # Takes either kind of server. On the native engine it sees only the inner fallback server.
        channelz.add_channelz_servicer(self._grpc)  # type: ignore[arg-type]
        names = [service.full_name for service in SERVICES]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._grpc)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for name in ("", *(service.full_name for service in SERVICES)):
            await self._health.set(name, status)

    async def _scan_not_active_broker(self) -> None:
        interval = self._settings.scan_not_active_broker_interval_millis / 1000
        pause = min(FIRST_SCAN_SECONDS, interval)
        while True:
            await asyncio.sleep(pause)
            self._own_stalls.check()
            for gone in await self._writer.apply(self._manager.scan_not_active_broker()):
                log_removed(gone)
                self._close_if_empty(gone.live.channel_id)
            for channel_id in await self._writer.apply(self._manager.idle_channels()):
                self._channels.close(channel_id, _ChannelClosing.REASON_IDLE)
            pause = interval

    def _close_if_empty(self, channel_id: str | None) -> None:
        """Closes the channel of an expired broker, so that a living agent behind it reopens and registers."""
        if channel_id is not None and not self._manager.channels.bound(channel_id):
            self._channels.close(channel_id, _ChannelClosing.REASON_IDLE)

    async def _shut_down(self) -> None:
        """Health first, then no more changes, then the streams, the calls and the write under way."""
        _log.info("namesrv_stopping")
        await self._health.enter_graceful_shutdown()
        self._manager.frozen = True
        self._channels.close_all(_ChannelClosing.REASON_SHUTDOWN)
        try:
            await self._grpc.stop(self._settings.shutdown_grace_millis / 1000)
        except TimeoutError:
            _log.warning("listener_did_not_close")
        await self._kv_config.close(LAST_WRITE_SECONDS)
        _log.info("namesrv_stopped")
