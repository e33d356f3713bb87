"""The service of namesrv_internal: diagnostics."""

from __future__ import annotations

import asyncio
import math

import structlog
from namesrv_internal.v1 import diagnostics_service_pb2 as diagnostics_pb

from namesrv import limits
from namesrv.app.access import caller_of
from namesrv.app.counters import RegistrationCounter
from namesrv.app.lookup_clients import LookupClients
from namesrv.app.stall_detector import StallDetector
from namesrv.core.errors import invalid_field
from namesrv.grpc_api.handlers import Context

_log = structlog.get_logger(__name__)

COUNT_SECONDS = 1.0
"""Shortest time between two counts of tasks: one takes 3 ms with 10,000 tasks."""


class DiagnosticsCalls:
    """Tells about this process."""

    def __init__(
        self, stall_detector: StallDetector, clients: LookupClients, registrations: RegistrationCounter
    ) -> None:
        self._stall_detector = stall_detector
        self._clients = clients
        self._registrations = registrations
        self._counted_at = -math.inf
        self._task_count = 0

    async def GetDiagnostics(  # noqa: N802 - calls have the names of the wire contract
        self, _request: diagnostics_pb.GetDiagnosticsRequest, _context: Context
    ) -> diagnostics_pb.GetDiagnosticsResponse:
        """Figures about the implementation."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._task_count = now, len(asyncio.all_tasks())
        refused_ago, skipped_ago = self._registrations.full_refused_ago, self._registrations.skipped_ago
        return diagnostics_pb.GetDiagnosticsResponse(
            task_count=self._task_count,
            loop_lag_millis=self._stall_detector.longest_delay() * 1000,
            refused_ago_millis=None if refused_ago is None else int(refused_ago * 1000),
            skipped_ago_millis=None if skipped_ago is None else int(skipped_ago * 1000),
        )

    async def ListClients(  # noqa: N802
        self, request: diagnostics_pb.ListClientsRequest, context: Context
    ) -> diagnostics_pb.ListClientsResponse:
        """The clients that look topics up, and whether they are recorded."""
        clients = self._clients
        if request.HasField("record_millis"):
            millis = request.record_millis
            if not 0 <= millis <= limits.MAX_RECORD_MILLIS:
                raise invalid_field("record_millis", f"is {millis}, must be 0 to {limits.MAX_RECORD_MILLIS}")
            clients.record(millis / 1000)
            _log.info("client_recording_changed", seconds=millis / 1000, caller=caller_of(context))
        found = diagnostics_pb.ListClientsResponse(recording=clients.is_recording)
        if clients.since_millis is not None:
            found.began_at_millis, found.ends_at_millis = clients.since_millis, clients.ends_at_millis
            found.left_out_count = clients.left_out_count
        for key, client in reversed(clients.clients.items()):
            found.clients.add(
                **key._asdict(),
                lookup_count=client.lookup_count,
                first_at_millis=client.first_at_millis,
                last_at_millis=client.last_at_millis,
                last_topic=client.last_topic,
            )
        return found
