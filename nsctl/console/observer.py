"""Observers, one for each name server: they ask it again and again, so that no page waits for an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from nsctl.commands.doctor import examined
from nsctl.findings import Finding
from nsctl.held import BrokerKey, Held, lacks_writable_queue, point, read
from nsctl.session import check_silence

POLL_SECONDS, CALL_SECONDS = 1.0, 3.0
"""Pause between two questions how a name server is, and time for an answer; then it is unreachable."""
READ_SECONDS, RENEW_SECONDS, READING_SHARE = 2.0, 5.0, 20
"""Pause between two readings of the tables after a change, and without one; and at least so many times a reading."""
LATEST = 100
"""Entries of the journal that are read."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One name server as it was when it was asked last. What it said before it became unreachable is kept."""

    endpoint: Endpoint
    status: pb.GetNamesrvStatusResponse | None = None
    held: Held | None = None
    """As of the last reading."""
    unwritable: frozenset[str] = frozenset()
    """Topics without a writable queue."""
    findings: tuple[Finding, ...] = ()
    """The doctor's findings about it."""
    answered_at_millis: int | None = None
    silence: Finding | None = None
    """Why it does not answer; None while it does."""

    @property
    def reachable(self) -> bool:
        return self.silence is None and self.status is not None

    @property
    def name(self) -> str:
        return self.status.header.namesrv_name if self.status else str(self.endpoint)

    @property
    def lives(self) -> Mapping[BrokerKey, route_data_pb2.BrokerLiveInfo]:
        return self.held.tables.lives if self.held else {}


class Observer:
    """One name server, polled by one task: heartbeats and the guard change no revision that could be watched."""

    def __init__(self, server: NamesrvClient) -> None:
        self.server, self.seen = server, Observation(server.endpoint)
        self._thread = ThreadPoolExecutor(1)  # of its own: one that hangs delays no other
        self._next_read = self._next_change = 0.0

    async def run(self) -> None:
        while True:
            self.seen = await asyncio.get_running_loop().run_in_executor(self._thread, self.observed)
            await asyncio.sleep(POLL_SECONDS)

    def observed(self) -> Observation:
        """Asks the name server, and returns how it is now. Blocks."""
        try:
            status = self.server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest())
            seen = replace(self.seen, status=status, answered_at_millis=time.time_ns() // 1_000_000, silence=None)
            began = time.monotonic()
            is_known = seen.held is not None and point(seen.held.status) == point(status)
            if began < (self._next_read if is_known else self._next_change):
                return seen
            held = read(self.server, seen.held, most_entries=LATEST)
        except CallError as error:
            return replace(self.seen, silence=self.seen.silence or check_silence(error, CALL_SECONDS))
        routes = held.tables.routes.items()
        unwritable = frozenset(topic for topic, route in routes if lacks_writable_queue(route))
        seen = replace(seen, status=held.status, held=held, unwritable=unwritable, findings=tuple(examined(held)))
        self._next_change = began + max(READ_SECONDS, READING_SHARE * (time.monotonic() - began))
        self._next_read = max(began + RENEW_SECONDS, self._next_change)
        return seen
