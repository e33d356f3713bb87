"""The clock of a name server beside ours: times that it tells are by its own."""

from __future__ import annotations

import time
from typing import NamedTuple

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.namesrv_client import NamesrvClient


class Clock(NamedTuple):
    """A name server's clock beside ours, seconds since the Unix epoch."""

    began: float
    """By our clock, before the name server was asked."""
    theirs: float
    """By the name server's clock, when it answered."""
    ended: float
    """By our clock, when its answer was here."""

    @property
    def skew(self) -> float:
        """How far the two are apart at least, in seconds."""
        return max(self.began - self.theirs, self.theirs - self.ended)


def clock_of(server: NamesrvClient) -> Clock:
    """Asks a name server for its time, by the header of a snapshot that is taken now."""
    began = time.time()
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_CLUSTERS])  # the smallest
    header = next(server.stream("StreamRouteSnapshot", request, server.timeout_seconds))
    assert isinstance(header, pb.StreamRouteSnapshotResponse)
    return Clock(began, header.snapshot_header.taken_at_millis / 1000, time.time())
