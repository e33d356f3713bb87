"""Snapshots of the tables stand still, and share what is alike. Rows and queues are shared, too."""

from __future__ import annotations

from namesrv.core.model import DataVersion
from tests.support.core_fleet import HA, A, B, Fleet
from tests.unit.namesrv.scenarios.groups import GROUP, lift_all, wipe

NEXT_VERSION = DataVersion(2_000, 2)


def test_a_snapshot_does_not_change_with_the_tables(fleet: Fleet) -> None:
    fleet.register(A, topics=("T",))
    taken = fleet.state.snapshot()
    fleet.register(A, topics=("T1",), version=NEXT_VERSION)
    fleet.register(B, 1)
    assert set(taken.tables.topic_queue_table) == {"T"}
    assert [group.addrs for group in taken.tables.broker_addr_table.values()] == [{0: A}]
    assert [live.broker_addr for live in taken.tables.broker_live_table.values()] == [A]


def test_two_snapshots_of_one_revision_share_the_tables(fleet: Fleet) -> None:
    fleet.register(A)
    first, second = fleet.state.snapshot(), fleet.state.snapshot()
    assert first.tables is second.tables
    fleet.register(A, topics=("T2",), version=NEXT_VERSION)
    assert fleet.state.snapshot().tables is not first.tables


def test_a_snapshot_keeps_the_permissions_of_its_revision(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    taken = fleet.state.snapshot()
    before = list(taken.messages())
    lift_all(fleet)
    assert list(taken.messages()) == before


def test_a_registration_that_says_nothing_new_leaves_the_row_of_its_group(fleet: Fleet) -> None:
    fleet.register(A, ha=HA, zone_name="z", enable_acting_master=True)
    before = fleet.state.tables.broker_addr_table[GROUP]
    for zone_name, acting in (("z", True), (None, None)):
        assert not fleet.register(A, ha=HA, zone_name=zone_name, enable_acting_master=acting).changed
        assert fleet.state.tables.broker_addr_table[GROUP] is before


def test_queue_data_of_many_topics_is_shared(fleet: Fleet) -> None:
    fleet.register(topics=[f"t{number}" for number in range(100)])
    assert len({id(queues[0]) for queues in fleet.state.tables.topic_queue_table.values()}) == 1
