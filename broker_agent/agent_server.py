"""The agent's own gRPC listener: health and status."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from broker_agent_api.v1 import broker_agent_service_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from broker_agent.errors import StartError
from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["BrokerAgentService"].full_name
STOP_SECONDS = 1.0
"""Time that calls in progress get at the end."""
_THREADS = 4
_HEALTH_SERVICES = ("", SERVICE_NAME)


class _BrokerAgentService(broker_agent_service_pb2_grpc.BrokerAgentServiceServicer):
    def __init__(self, status: Callable[[], pb.GetAgentStatusResponse]) -> None:
        self._status = status

    def GetAgentStatus(  # noqa: N802 - the contract's name, documented there
        self,
        request: pb.GetAgentStatusRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> pb.GetAgentStatusResponse:
        return self._status()


class AgentServer:
    """Answers health checks, NOT_SERVING until told otherwise, and GetAgentStatus."""

    def __init__(self, listen: Endpoint, status: Callable[[], pb.GetAgentStatusResponse]) -> None:
        """Takes the port; answers only once started.

        Args:
            listen: Where to listen; port 0 means any free one.
            status: Makes the answer to GetAgentStatus.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting listen: {error}") from error
        self._health = health.HealthServicer()
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="broker-agent-server")
        # By default gRPC shares a port that another server of this user already has, and gets half of its calls.
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        broker_agent_service_pb2_grpc.add_BrokerAgentServiceServicer_to_server(
            _BrokerAgentService(status), self._server
        )
        try:
            port = self._server.add_insecure_port(str(listen))
        except RuntimeError as error:
            self._pool.shutdown()
            raise StartError(f"setting listen: cannot listen on {listen}: {error}") from error
        self.endpoint = Endpoint(listen.host, port)
        """Where it listens."""

    def start(self) -> None:
        """Starts to answer."""
        self._server.start()

    def set_serving(self) -> None:
        """Reports SERVING from now on, unless the end has begun."""
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def enter_shutdown(self) -> None:
        """Reports NOT_SERVING from now on, whatever happens."""
        self._health.enter_graceful_shutdown()

    def stop(self) -> None:
        """Ends calls in progress and gives the port back."""
        self._server.stop(STOP_SECONDS).wait(2 * STOP_SECONDS)
        self._pool.shutdown(wait=False)

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in _HEALTH_SERVICES:
            self._health.set(service, status)
