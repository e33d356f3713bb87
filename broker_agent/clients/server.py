"""The agent's listener for clients: asyncio on a thread of its own, so that a channel costs no thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import grpc
import structlog
from broker_agent_api.v1 import client_service_pb2 as pb
from grpc_health.v1 import health_pb2
from namesrv_api.v1 import route_data_pb2

from broker_agent.auth import AgentAdmission
from broker_agent.clients.client_service import ClientServicer
from broker_agent.clients.clients import ClientManagers
from broker_agent.clients.limits import (
    MAX_CONCURRENT_STREAMS,
    MAX_CONNECTIONS,
    MAX_HEALTH_CALLS,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    MAX_PENDING_REQUESTS,
    SLOW_READER_SECONDS,
)
from broker_agent.errors import FAILURES, StartError
from groundwork.call_metrics import CallObserver
from groundwork.endpoints import Endpoint
from groundwork.grpcio_server import check_bindable, listener_options
from groundwork.health_service import HealthService
from groundwork.listener_tls import ListenerTls
from groundwork.loop_thread import LoopThread
from groundwork.open_calls import OpenCalls
from groundwork.program import descriptors_of_listener
from groundwork.rpc_handlers import CallHandlers
from groundwork.share_gate import ShareGate
from groundwork.shares import Shares

SERVICE = pb.DESCRIPTOR.services_by_name["ClientService"]
STOP_SECONDS = 1.0
"""Time that channels and calls get at the end."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_Status = health_pb2.HealthCheckResponse


@dataclass(frozen=True, slots=True)
class ClientServerOptions:
    """How connections of clients are watched."""

    keepalive_time_millis: int = 5_000
    """Silence after which a client is pinged: how soon a lost one leaves its groups."""
    keepalive_timeout_millis: int = 5_000
    """Time for its answer."""
    slow_reader_seconds: float = SLOW_READER_SECONDS
    """How long the holder of a channel may take nothing."""

    def as_grpc(self) -> list[tuple[str, int]]:
        return listener_options(
            max_connections=min(MAX_CONNECTIONS, descriptors_of_listener()),
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_metadata_bytes=MAX_METADATA_BYTES,
            max_concurrent_streams=MAX_CONCURRENT_STREAMS,
            max_pending_requests=MAX_PENDING_REQUESTS,
            keepalive_time_millis=self.keepalive_time_millis,
            keepalive_timeout_millis=self.keepalive_timeout_millis,
        )


def handlers_of_clients(
    options: ClientServerOptions,
    observers: Sequence[CallObserver],
    admission: AgentAdmission | None = None,
    open_calls: OpenCalls | None = None,
) -> CallHandlers:
    """Makes the handlers of clients' calls. gRPC bounds messages and streams (``limits``)."""
    gate_of = partial((admission or AgentAdmission()).gate_of, open_calls=open_calls or OpenCalls())
    return CallHandlers(FAILURES, options.slow_reader_seconds, gate_of=gate_of, observers=observers)


class ClientServer:
    """Serves ClientService, and its health, on an event loop in a thread of its own."""

    def __init__(
        self,
        listen: Endpoint,
        managers: ClientManagers,
        identity: Callable[[], route_data_pb2.BrokerIdentity],
        options: ClientServerOptions | None = None,
        tls: ListenerTls | None = None,
        *,
        admission: AgentAdmission | None = None,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Takes the port; answers, and has a thread, only once started.

        Args:
            listen: Where to listen; port 0 means any free one.
            managers: The state that it serves; whoever made them starts and stops them.
            identity: The broker that the agent is beside, as it is now; called by the event loop.
            admission: Who may call; None: everybody.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting listen: {error}") from error
        self._managers = managers
        self._runner = LoopThread("broker-agent-clients")
        self._admission = admission
        self._open_calls = OpenCalls()
        self._observers = observers
        servicer = ClientServicer(managers, identity)
        try:
            port = self._runner.run(self._bind(listen, servicer, options or ClientServerOptions(), tls))
        except RuntimeError as error:
            self._runner.close()
            raise StartError(f"setting listen: cannot listen on {listen}: {error}") from error
        self.endpoint = Endpoint(listen.host, port)
        """Where it listens."""

    def start(self) -> None:
        self._runner.start()
        self._runner.run(self._start())

    def check_again(self) -> None:
        """Ends the open calls whose callers have lost the right to them. Thread-safe."""
        self._runner.begin(self._open_calls.check_again())

    def stop(self) -> None:
        """Closes all channels with reason SHUTDOWN, ends calls in progress and gives the port back.

        Nobody is removed by it, whether or not the managers have been stopped before. A second call does nothing.
        """
        if self._runner.is_over:
            return
        self._managers.stop()
        if not self._runner.has_started:
            self._runner.run(self._server.start())  # otherwise gRPC does not give the port back
        if not self._runner.stop(self._stop()):
            _log.warning("client_listener_did_not_close")

    async def _bind(
        self, listen: Endpoint, servicer: ClientServicer, options: ClientServerOptions, tls: ListenerTls | None
    ) -> int:
        self._server = grpc.aio.server(options=options.as_grpc())
        handlers = handlers_of_clients(options, self._observers, self._admission, self._open_calls)
        handlers.add_service(self._server, SERVICE, (servicer,))
        self._health = HealthService()
        gate = ShareGate(Shares("open calls of health", MAX_HEALTH_CALLS))
        self._health.add_to(self._server, CallHandlers(FAILURES, options.slow_reader_seconds, gate_of=lambda _: gate))
        if tls is None:
            return self._server.add_insecure_port(str(listen))
        return self._server.add_secure_port(str(listen), tls.credentials())

    async def _start(self) -> None:
        await self._server.start()
        for service in ("", SERVICE.full_name):
            self._health.set(service, _Status.SERVING)
        _log.info("client_listener_started", listening_on=str(self.endpoint))

    async def _stop(self) -> None:
        self._health.enter_shutdown()
        self._managers.tables.channels.close_all(pb.ClientChannelClosing.REASON_SHUTDOWN)
        await self._server.stop(STOP_SECONDS)
