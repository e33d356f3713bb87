"""A health check of a gRPC server, as a container's HEALTHCHECK runs it."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from namesrv_common.client.channels import ClientSecurity, open_channel
from namesrv_common.endpoints import Endpoint


def check_health(
    endpoint: Endpoint, service: str, timeout_seconds: float, security: ClientSecurity | None = None
) -> str | None:
    """Asks ``grpc.health.v1`` once. An empty service is the whole server.

    Returns:
        None if the answer is SERVING, otherwise one line that says what it was instead.
    """
    with open_channel(endpoint, (), security) as connection:
        stub = health_pb2_grpc.HealthStub(connection)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_seconds)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # the health service's answer has no text
                return f"{endpoint}: there is no service {service}"
            return f"{endpoint}: {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{endpoint}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
