"""Servicers on a manager of a test, warm from the start unless told otherwise."""

from __future__ import annotations

import itertools

from namesrv.core.pins import Pins
from namesrv.core.warm_up import WarmUp
from namesrv.server.chosen_engine import ChosenEngine
from namesrv.server.own_stalls import OwnStalls
from namesrv.server.route_servicer import RouteServicer
from namesrv.server.watchers import Watchers
from tests.unit.namesrv.fleet import Fleet


def route_servicer(
    fleet: Fleet, own_stalls: OwnStalls | None = None, started_at_millis: int = 0, warm_up_seconds: float = 0.0
) -> RouteServicer:
    """A servicer that answers from a fleet's name server."""
    manager, clock = fleet.manager, fleet.clock
    numbers = itertools.count(1)
    warm_up = WarmUp(manager, clock, warm_up_seconds)
    return RouteServicer(
        manager,
        own_stalls or OwnStalls(clock.monotonic, manager.grant_more_time, 10.0),
        warm_up,
        Pins(clock.monotonic, lambda: f"pin-{next(numbers)}"),
        Watchers(manager, warm_up, clock),
        product_env=None,
        started_at_millis=started_at_millis,
        engine=ChosenEngine("none", "a unit test"),
    )
