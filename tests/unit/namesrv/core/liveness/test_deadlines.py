"""Deadlines of brokers: searched while brokers come and go."""

from __future__ import annotations

from namesrv.core.liveness import Liveness
from namesrv.core.model import LiveKey
from namesrv.core.pace import FEW
from tests.support.virtual_clock import VirtualClock
from tests.support.yield_points import AtYieldPoint, yielding


def key(number: int) -> LiveKey:
    return LiveKey("cluster", f"10.0.0.1:{number}")


def test_a_search_passes_over_brokers_that_leave_or_are_heard_of_meanwhile() -> None:
    clock = VirtualClock()
    liveness = Liveness(clock, 60.0)
    brokers = 2 * FEW
    for number in range(brokers):
        liveness.give(key(number), 10.0)
    clock.advance(11.0)

    def moment() -> None:
        liveness.forget(key(brokers - 1))
        liveness.give(key(brokers - 2), 10.0)
        liveness.give(key(brokers), 10.0)

    yield_point = AtYieldPoint(0, moment)
    with yielding(yield_point):
        found = liveness.overdue_brokers()
    assert yield_point.has_come
    assert found == [key(number) for number in range(brokers - 2)]


def test_it_is_known_how_late_the_last_search_found_the_most_overdue_broker() -> None:
    clock = VirtualClock()
    liveness = Liveness(clock, 60.0)
    liveness.give(key(1), 10.0)
    liveness.give(key(2), 5.0)
    clock.advance(5.0)
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 0.0
    clock.advance(7.0)
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 7.0
    liveness.forget(key(2))
    liveness.overdue_brokers()
    assert liveness.longest_overdue == 2.0
