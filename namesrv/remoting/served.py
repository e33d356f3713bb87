"""The tables that the front answers from: the name server's own, or those of a copy."""

from __future__ import annotations

from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.remoting.route_json import RouteJson


class Served:
    """One manager, its warm-up, and its routes as JSON."""

    def __init__(self, manager: RouteInfoManager, warm_up: WarmUp) -> None:
        self.manager = manager
        self.warm_up = warm_up
        self.routes = RouteJson(manager)
