"""The tables that the front answers from."""

from __future__ import annotations

from namesrv.app.worker import Worker
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.remoting.route_json import RouteJson


class Served:
    """One state, its warm-up, and its routes as JSON."""

    def __init__(self, state: RouteState, warm_up: WarmUp, reader: Worker) -> None:
        self.state = state
        self.warm_up = warm_up
        self.reader = reader
        self.routes = RouteJson(state)
