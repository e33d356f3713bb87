"""Rows that a registration leaves as they are, and queues that rows share."""

from __future__ import annotations

from tests.support.core_fleet import HA, A, Fleet
from tests.unit.namesrv.scenarios.groups import GROUP


def test_a_registration_that_says_nothing_new_leaves_the_row_of_its_group(fleet: Fleet) -> None:
    fleet.register(A, ha=HA, zone_name="z", enable_acting_master=True)
    before = fleet.state.tables.broker_addr_table[GROUP]
    for zone_name, acting in (("z", True), (None, None)):
        assert not fleet.register(A, ha=HA, zone_name=zone_name, enable_acting_master=acting).changed
        assert fleet.state.tables.broker_addr_table[GROUP] is before


def test_queue_data_of_many_topics_is_shared(fleet: Fleet) -> None:
    fleet.register(topics=[f"t{number}" for number in range(100)])
    assert len({id(queues[0]) for queues in fleet.state.tables.topic_queue_table.values()}) == 1
