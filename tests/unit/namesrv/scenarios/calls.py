"""The services of a name server, called without a network."""

from __future__ import annotations

from namesrv.app.channels import ChannelStreams
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from namesrv.grpc_api.registration import RegistrationServicer
from tests.support.core_fleet import Fleet
from tests.unit.namesrv.servicers import route_servicer


class Calls:
    """The servicers of a fleet's name server, and what is below them."""

    def __init__(self, fleet: Fleet, max_waiting_writers: int = 10) -> None:
        clock, state = fleet.clock, fleet.state
        self.stall_detector = StallDetector(clock.monotonic, fleet.heartbeats.grant_more_time, doubtful_seconds=10.0)
        self.writer = TableWriter(max_waiting_writers)
        self.channels = ChannelStreams(state, self.writer, self.stall_detector)
        self.routes = route_servicer(fleet, started_at_millis=clock.wall_millis())
        self.registration = RegistrationServicer(state, self.writer, self.channels, idle_timeout_millis=120_000)
