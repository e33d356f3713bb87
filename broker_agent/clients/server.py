"""The agent's listener for clients: asyncio, so that a channel costs no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from broker_agent_api.v1 import client_service_pb2 as pb
from grpc_health.v1 import health_pb2

from broker_agent.auth import AgentAdmission
from broker_agent.clients import limits
from broker_agent.clients.client_service import SERVICE, ClientServicer
from broker_agent.clients.managers import ClientManagers
from broker_agent.listener import LoopListener
from broker_agent.registration import BrokerState
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.tls.listener_tls import ListenerTls

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ClientServer(LoopListener):
    """Serves ClientService and its health, and removes silent clients."""

    def __init__(
        self,
        listen: Endpoint,
        managers: ClientManagers,
        broker: Callable[[], BrokerState],
        tls: ListenerTls | None = None,
        *,
        admission: AgentAdmission | None = None,
        observers: Sequence[CallObserver] = (),
        keepalive_seconds: float = limits.KEEPALIVE_SECONDS,
        slow_reader_seconds: float = limits.SLOW_READER_SECONDS,
    ) -> None:
        """Takes the port; answers only once started. Raises StartError. The event loop calls ``broker``."""
        self._managers = managers
        super().__init__(
            "listen",
            listen,
            [(SERVICE, ClientServicer(managers, broker))],
            thread="broker-agent-clients",
            max_connections=limits.MAX_CONNECTIONS,
            max_pending_requests=limits.MAX_PENDING_REQUESTS,
            keepalive_seconds=keepalive_seconds,
            slow_reader_seconds=slow_reader_seconds,
            most_health_calls=limits.MAX_HEALTH_CALLS,
            tls=tls,
            admission=admission,
            observers=observers,
        )

    async def _start(self) -> None:
        await super()._start()
        self._scans = asyncio.create_task(self._managers.scan_periodically())
        for service in ("", SERVICE.full_name):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        _log.info("client_listener_started", listening_on=str(self.endpoint))

    async def _stop(self) -> None:
        """Closes all channels with reason SHUTDOWN."""
        if self._runner.has_started:
            self._scans.cancel()
        self._health.enter_shutdown()
        with self._managers.lock:
            self._managers.channels.close_all(pb.ClientChannelClosing.REASON_SHUTDOWN)
        await super()._stop()
