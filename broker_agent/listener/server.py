"""A gRPC listener of the agent: health checks, and the services that are added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from broker_agent.auth.admission import AgentAdmission
from broker_agent.errors import StartError
from broker_agent.listener.error_answers import ErrorAnswers
from broker_agent.listener.observed_answers import ObservedAnswers
from groundwork.connections.listener_tls import ListenerTls
from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable
from groundwork.telemetry.call_observers import CallObserver

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["BrokerAgentService"].full_name
STOP_SECONDS = 1.0
"""Time that calls in progress get at the end."""
THREADS = 8
"""Calls that one listener works on at once. Streams take none."""
MAX_WAITING_CALLS = 10_000
"""Calls of one listener that wait for a thread or are worked on; more are refused with RESOURCE_EXHAUSTED."""
_HEALTH_SERVICES = ("", SERVICE_NAME)
_OWN_PACKAGE = f"/{pb.DESCRIPTOR.package}."

AddService = Callable[[grpc.Server], None]


class _OwnErrorAnswers(ErrorAnswers):
    """Leaves the health service alone: its streams take no thread only if gRPC gets the original handler."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handlers of our own services. Called by gRPC."""
        if not handler_call_details.method.startswith(_OWN_PACKAGE):
            return continuation(handler_call_details)
        return super().intercept_service(continuation, handler_call_details)


class AgentServer:
    """Answers health checks, NOT_SERVING until told otherwise, and the services that it is given."""

    def __init__(
        self,
        listen: Endpoint,
        services: Sequence[AddService],
        setting: str = "listen",
        tls: ListenerTls | None = None,
        *,
        admission: AgentAdmission | None = None,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Takes the port; answers only once started.

        Args:
            listen: Where to listen; port 0 means any free one.
            services: Each puts a service on the server.
            setting: Name of the setting that says where, for errors.
            tls: What it shows; None: no TLS.
            admission: Who may call; None: everybody.
            observers: Watch the calls.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting {setting}: {error}") from error
        self._health = health.HealthServicer()
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._accepted = self._stopping = False
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="broker-agent-server")
        self._server = grpc.server(
            self._pool,
            interceptors=[ObservedAnswers(observers, pb.DESCRIPTOR.package), _OwnErrorAnswers(admission)],
            # By default gRPC would share a port with another server of this user, and get half of its calls.
            options=[("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=MAX_WAITING_CALLS,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for add_service in services:
            add_service(self._server)
        try:
            if tls is None:
                port = self._server.add_insecure_port(str(listen))
            else:
                port = self._server.add_secure_port(str(listen), tls.credentials())
        except RuntimeError as error:
            self._pool.shutdown()
            raise StartError(f"setting {setting}: cannot listen on {listen}: {error}") from error
        self.endpoint = Endpoint(listen.host, port)
        """Where it listens."""

    @property
    def not_serving(self) -> str | None:
        """Why health checks say NOT_SERVING; None if they do not."""
        if self._stopping:
            return "shutting down"
        return None if self._accepted else "no name server has accepted the registration yet"

    def start(self) -> None:
        """Starts to answer."""
        self._server.start()

    def set_serving(self) -> None:
        """Reports SERVING from now on, unless the end has begun."""
        self._accepted = True
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def enter_shutdown(self) -> None:
        """Reports NOT_SERVING from now on, whatever happens."""
        self._stopping = True
        self._health.enter_graceful_shutdown()

    def stop(self) -> None:
        """Ends calls in progress and gives the port back."""
        self._server.stop(STOP_SECONDS).wait(2 * STOP_SECONDS)
        self._pool.shutdown(wait=False)

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in _HEALTH_SERVICES:
            self._health.set(service, status)
