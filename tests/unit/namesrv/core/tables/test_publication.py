"""A registration that repeats its group's data publishes it only if others have changed it."""

from __future__ import annotations

import pytest

from namesrv.core.operator_changes import publish_behaviour
from namesrv.core.policy import Behaviour
from tests.support.core_fleet import HA, A, B, Fleet
from tests.unit.namesrv.scenarios.groups import GROUP, TEST, known_route, perms, wipe


def test_a_registration_that_says_nothing_new_leaves_the_row_of_its_group(fleet: Fleet) -> None:
    fleet.register(A, ha=HA, zone_name="z", enable_acting_master=True)
    before = fleet.state.tables.broker_addr_table[GROUP]
    for zone_name, acting in (("z", True), (None, None)):
        assert not fleet.register(A, ha=HA, zone_name=zone_name, enable_acting_master=acting).changed
        assert fleet.state.tables.broker_addr_table[GROUP] is before


@pytest.mark.parametrize("wiped", [False, True])
def test_who_stands_in_for_a_master_is_as_operators_set_it_from_the_next_registration_on(
    fleet: Fleet, wiped: bool
) -> None:
    if wiped:
        wipe(fleet)

    def register() -> dict[int, str]:
        fleet.register(B, 1, enable_acting_master=True, topic_by_topic=True)
        return fleet.addrs()

    assert register() == {1: B}
    publish_behaviour(fleet.state, Behaviour(support_acting_master=True), TEST, ())
    assert register() == {0: B}
    publish_behaviour(fleet.state, Behaviour(), TEST, ())
    assert register() == {1: B}


def test_filter_servers_come_and_go_with_a_registration_that_says_nothing_else(fleet: Fleet) -> None:
    fleet.register(A)
    fleet.register(A, filter_servers=("127.0.0.1:30000",))
    (found,) = known_route(fleet).filter_servers
    assert list(found.filter_servers) == ["127.0.0.1:30000"]
    fleet.register(A, filter_servers=())
    assert not known_route(fleet).filter_servers


def test_a_drain_stays_over_registrations_that_say_nothing_new(fleet: Fleet) -> None:
    fleet.register(A)
    wipe(fleet)
    assert not fleet.register(A).changed
    assert perms(fleet) == [4]
