"""The health service of gRPC: which services of a server serve, for probes, balancers and clients.

The servicer of grpcio-health-checking holds a lock while it writes to a watcher, so one that reads nothing stops every
later change of the health, the last one included. Here a change only wakes the watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2 as pb

from namesrv_common.server.rpc_handlers import Context, Gate
from namesrv_common.server.shares import Sharer, Shares, sharer_at

SERVICE = pb.DESCRIPTOR.services_by_name["Health"]

MAX_SERVICE_LENGTH = 255
"""Longest name of a service that is watched."""

_Answer = pb.HealthCheckResponse


class HealthService:
    """The health of one server. Use it inside the server's event loop."""

    inline_calls = ("Check",)

    def __init__(self) -> None:
        self._statuses: dict[str, pb.HealthCheckResponse.ServingStatus] = {"": _Answer.SERVING}
        self._changed = asyncio.Event()
        """Set by the next change, which replaces it."""
        self._is_shutting_down = False

    def set(self, service: str, status: pb.HealthCheckResponse.ServingStatus) -> None:
        """Sets the status of a service by its full name; the empty name is the whole server. Ignored after shutdown."""
        if not self._is_shutting_down:
            self._statuses[service] = status
            self._wake()

    def enter_shutdown(self) -> None:
        """Sets all services to NOT_SERVING forever."""
        self._is_shutting_down = True
        self._statuses = dict.fromkeys(self._statuses, _Answer.NOT_SERVING)
        self._wake()

    # The calls, by their names in the wire contract.

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:  # noqa: N802
        """The status of a service; NOT_FOUND if the server does not know the service."""
        status = self._statuses.get(request.service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("this server does not know the service")
        return _Answer(status=status)

    async def Watch(  # noqa: N802
        self, request: pb.HealthCheckRequest, context: Context
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status of a service, now and after each change. Slow readers get only the last one.

        A name that no service can have is refused: a watch lasts, and keeps the name.
        """
        if len(request.service) > MAX_SERVICE_LENGTH:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(f"service has {len(request.service)} characters, at most {MAX_SERVICE_LENGTH}")
            return
        service, told = request.service, None
        del request
        while True:
            changed = self._changed
            if (status := self._statuses.get(service, _Answer.SERVICE_UNKNOWN)) != told:
                told = status
                yield _Answer(status=status)
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ShareGate(Gate):
    """The gate of health and reflection, which everybody may call: each address has a share of the open calls."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    def enter(self, context: Context) -> Sharer:
        """A call begins. Raises OVERLOADED if no share is left."""
        sharer = sharer_at(context.peer())
        self.shares.take(sharer)
        return sharer

    def leave(self, entered: Sharer) -> None:
        self.shares.give_back(entered)

    def has_room(self) -> bool:
        """Whether any caller could make another call."""
        return self.shares.has_room_for_anyone()
