"""Whose losses the guard counts: nobody's registrations decide over the brokers of somebody else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from namesrv.core.policy import Behaviour
from namesrv.core.removals import Hold, Removal
from namesrv.core.state import RouteState
from tests.support.breaths import AtBreath, breathing, short_breaths
from tests.support.core_fleet import Fleet

SETTLE = Behaviour().mass_loss_settle_seconds
MANY = 150


class OwnedFleet(Fleet):
    """Masters of a group each, with a channel each, that somebody owns."""

    def __init__(self, owners: dict[str, int]) -> None:
        super().__init__()
        self.channels: dict[str, str] = {}
        for owner, brokers in owners.items():
            for number in range(brokers):
                self.come(f"{owner}-{number}", owner)

    def come(self, name: str, owner: str, address: str = "") -> None:
        self.channels[name] = channel = self.routes.heartbeats.open_channel()
        self.register(f"{name}:10911", name=name, topics=(name,), channel_id=channel, owner=owner, address=address)

    def flood(self, owner: str, *, groups: int = 1, address: str = "") -> str:
        """Many registrations of one owner over one channel, of one group or of several."""
        channel = self.routes.heartbeats.open_channel()
        for number in range(MANY):
            group, addr = f"{owner}-flood-{number % groups}", f"{owner}.{number}:1"
            self.register(addr, number, name=group, topics=(group,), channel_id=channel, owner=owner, address=address)
        return channel

    def lose(self, *names: str) -> None:
        for name in names:
            self.end_channel(self.channels[name])

    def is_routed(self, name: str) -> bool:
        return name in self.topics


class FleetWithoutPermits(OwnedFleet):
    """Masters that addresses registered, named after their address."""

    def __init__(self, addresses: dict[str, int]) -> None:
        super().__init__({})
        for address, brokers in addresses.items():
            for number in range(brokers):
                self.come(f"{address}-{number}", "", address)

    @property
    def held(self) -> set[str]:
        return {key.broker_addr for key in self.state.unconfirmed}


def one_broker_each(owners: int) -> dict[str, int]:
    return {f"owner{number}": 1 for number in range(owners)}


def test_150_ids_of_one_group_neither_trip_the_guard_nor_hold_a_neighbours_dead_broker() -> None:
    fleet = OwnedFleet(one_broker_each(5))
    fleet.end_channel(fleet.flood("owner0"))
    assert not fleet.state.unconfirmed
    fleet.lose("owner1-0", "owner2-0")
    assert not fleet.state.unconfirmed
    assert not fleet.is_routed("owner1-0")
    assert not fleet.is_routed("owner2-0")


def test_nor_do_they_if_they_were_there_for_long_before_they_go() -> None:
    fleet = OwnedFleet(one_broker_each(5))
    channel = fleet.flood("owner0")
    fleet.clock.advance(SETTLE)
    fleet.end_channel(channel)
    fleet.lose("owner1-0", "owner2-0")
    assert not fleet.state.unconfirmed


def test_nor_in_a_fleet_of_two_owners() -> None:
    fleet = OwnedFleet({"attacker": 1, "victim": 2})
    fleet.end_channel(fleet.flood("attacker", groups=MANY))
    fleet.lose("victim-0")
    assert not fleet.is_routed("victim-0")


def test_nor_where_nobody_has_an_identity_once_the_fleet_has_settled() -> None:
    fleet = OwnedFleet({"": 5})
    fleet.clock.advance(SETTLE + 1)
    channel = fleet.flood("", groups=MANY)
    fleet.end_channel(channel)
    fleet.lose("-0", "-1")
    assert not fleet.state.unconfirmed
    assert not fleet.is_routed("-0")


def test_nor_do_150_ids_of_one_group_where_nobody_has_an_identity() -> None:
    fleet = OwnedFleet({"": 5})
    fleet.end_channel(fleet.flood(""))
    fleet.lose("-0")
    assert not fleet.state.unconfirmed
    assert not fleet.is_routed("-0")


def test_an_identity_with_many_groups_holds_at_most_its_own() -> None:
    fleet = OwnedFleet(one_broker_each(5))
    fleet.end_channel(fleet.flood("owner0", groups=MANY))
    assert fleet.state.unconfirmed
    assert all(key.broker_addr.startswith("owner0.") for key in fleet.state.unconfirmed)
    fleet.lose("owner1-0", "owner2-0")
    assert not fleet.is_routed("owner1-0")


def test_nobody_hides_a_mass_loss_by_registering_many_brokers_that_live() -> None:
    fleet = OwnedFleet(one_broker_each(5))
    fleet.flood("owner0", groups=MANY)
    fleet.clock.advance(SETTLE)
    lost = [f"owner{number}-0" for number in range(1, 5)]
    fleet.lose(*lost)
    assert len(fleet.state.unconfirmed) == 4
    assert all(map(fleet.is_routed, lost))


def test_a_flood_of_one_address_holds_no_dead_broker_of_others_in_a_young_fleet() -> None:
    fleet = FleetWithoutPermits(one_broker_each(5))
    fleet.end_channel(fleet.flood("", groups=MANY, address="attacker"))
    fleet.lose("owner0-0", "owner1-0")
    assert not fleet.is_routed("owner0-0")
    assert not fleet.is_routed("owner1-0")
    assert all(addr.startswith(".") for addr in fleet.held), "only the attacker's own"


def test_a_flood_of_one_address_neither_trips_nor_hides_anything_behind_a_proxy() -> None:
    fleet = FleetWithoutPermits({"proxy": 5, "direct": 1})
    fleet.flood("", groups=MANY, address="lasting")
    fleet.end_channel(fleet.flood("passing", groups=MANY, address="passing"))
    fleet.lose("proxy-0", "proxy-1")
    assert not fleet.is_routed("proxy-1")
    fleet.lose("proxy-2", "proxy-3")
    assert {f"proxy-{number}:10911" for number in range(4)} <= fleet.held


def test_a_young_fleet_behind_one_address_is_guarded() -> None:
    fleet = FleetWithoutPermits({"proxy": 6})
    fleet.lose("proxy-0", "proxy-1", "proxy-2")
    assert not fleet.held
    fleet.lose("proxy-3")
    assert len(fleet.held) == 4


def test_brokers_count_whatever_their_address_once_the_first_ones_have_settled() -> None:
    fleet = FleetWithoutPermits({"a": 4, "b": 4, "c": 4})
    fleet.clock.advance(2 * SETTLE)
    fleet.lose("a-0", "a-1", "a-2", "a-3", "b-0", "b-1")
    assert not fleet.held
    fleet.lose("c-0")
    assert len(fleet.held) == 7


def test_losses_before_and_after_the_first_ones_have_settled_count_together() -> None:
    fleet = FleetWithoutPermits(one_broker_each(6))
    fleet.clock.advance(2 * SETTLE - 1)
    fleet.lose("owner0-0", "owner1-0", "owner2-0")
    fleet.clock.advance(1)
    fleet.lose("owner3-0")
    assert len(fleet.held) == 4


def test_a_fleet_whose_brokers_each_have_an_identity_is_guarded() -> None:
    fleet = OwnedFleet(one_broker_each(6))
    fleet.lose("owner0-0", "owner1-0", "owner2-0")
    assert not fleet.state.unconfirmed
    fleet.lose("owner3-0")
    assert len(fleet.state.unconfirmed) == 4


def test_two_groups_of_a_master_and_a_slave_are_guarded_whoever_owns_them() -> None:
    for owners in ({"": 4}, {"a": 2, "b": 2}):
        fleet = OwnedFleet(owners)
        fleet.lose(*fleet.channels)
        assert len(fleet.state.unconfirmed) == 4, owners
        assert len(fleet.topics) == 4


def test_a_large_owner_is_guarded_by_itself_and_its_loss_is_one_to_the_others() -> None:
    fleet = OwnedFleet({"large": 10, "small": 1, "other": 2})
    fleet.lose(*[f"large-{number}" for number in range(7)])
    assert len(fleet.state.unconfirmed) == 7
    fleet.lose("small-0")
    assert not fleet.is_routed("small-0")


def test_brokers_that_came_just_now_do_not_count_and_are_held_with_their_owners_others() -> None:
    fleet = OwnedFleet({"": 4})
    fleet.clock.advance(SETTLE + 1)
    for number in range(10, 20):
        fleet.come(f"-{number}", "")
    fleet.lose("-10", "-11", "-12", "-0", "-1")
    assert not fleet.state.unconfirmed
    fleet.lose("-2")
    assert len(fleet.state.unconfirmed) == 6
    assert fleet.is_routed("-10")


def test_brokers_that_come_back_go_on_counting_from_when_they_came_first() -> None:
    fleet = OwnedFleet({"": 4})
    fleet.clock.advance(SETTLE + 1)
    fleet.lose("-0", "-1")
    fleet.clock.advance(5)
    for name in ("-0", "-1"):
        fleet.come(name, "")
    fleet.lose("-0", "-1", "-2")
    assert len(fleet.state.unconfirmed) == 3


def test_brokers_that_come_back_after_the_window_count_as_new() -> None:
    fleet = OwnedFleet({"": 7})
    fleet.lose("-0", "-1")
    fleet.clock.advance(SETTLE + 1)
    for name in ("-0", "-1"):
        fleet.come(name, "")
    fleet.lose("-2", "-3", "-4")
    assert len(fleet.state.unconfirmed) == 3, "three of the five that were there for long"


def test_what_the_guard_remembers_ends_with_the_window() -> None:
    fleet = OwnedFleet(one_broker_each(3))
    channel = fleet.flood("owner0")
    fleet.end_channel(channel)
    fleet.clock.advance(Behaviour().mass_loss_window_seconds + 1)
    fleet.come("owner1-0", "owner1")
    guard = fleet.state.guard
    fleet.clock.advance(SETTLE)
    fleet.lose("owner2-0")
    assert len(guard._members) == 3
    assert len(guard._tally._voters) == 3


def test_a_loss_counts_for_one_window_whatever_another_owner_lost_in_between() -> None:
    fleet, window = OwnedFleet({"x": 10, "y": 10}), Behaviour().mass_loss_window_seconds
    fleet.lose("x-0", "x-1")
    fleet.clock.advance(window / 4)
    fleet.lose(*[f"y-{number}" for number in range(7)])
    fleet.clock.advance(window / 4)
    fleet.lose(*[f"x-{number}" for number in range(2, 7)])
    assert len(fleet.state.unconfirmed) == 14
    fleet.clock.advance(0.6 * window)
    fleet.come("z-0", "z")
    held = {key.broker_addr.partition(":")[0] for key in fleet.state.guard._held}
    assert held == {*[f"y-{number}" for number in range(7)], *[f"x-{number}" for number in range(2, 7)]}


def test_frozen_tables_bring_back_nothing_of_what_other_owners_lost() -> None:
    for moment in itertools.count():
        fleet = OwnedFleet({"x": 5, "y": 1, "z": 1, "w": 10})
        fleet.lose("x-0", "x-1", "y-0", "z-0", "w-0", "w-1", "w-2", "w-3")
        assert not fleet.state.unconfirmed
        fleet.routes.heartbeats.end_channel(fleet.channels["w-4"])
        frozen_at: list[int] = []

        def freeze(state: RouteState = fleet.state, frozen_at: list[int] = frozen_at) -> None:
            state.frozen = True
            frozen_at.append(state.revision)

        breath = AtBreath(moment, freeze)
        losing = fleet.routes.removals.on_channel_destroy([fleet.channels["w-4"]])
        while (change := prepared(losing, breath)) is not None:
            change.commit()
        if not breath.has_come:
            assert fleet.is_routed("x-1"), "or nothing was to be brought back"
            assert moment > 2, "or it never gave way in between"
            return
        assert fleet.state.revision == frozen_at[0]


def prepared(losing: Iterator[Removal | Hold], breath: AtBreath) -> Removal | Hold | None:
    """Prepares the next change, with a moment at each of its breaths and after it; None if there is none."""
    with short_breaths(), breathing(breath):
        change = next(losing, None)
        if change is not None:
            change.prepare()
    breath()
    return change


def test_a_hold_that_is_given_up_leaves_nothing_interned() -> None:
    fleet = OwnedFleet({"": 4})
    fleet.lose("-0", "-1")
    groups, queue_datas = fleet.state.tables.broker_addr_table, fleet.state.tables.queue_datas
    assert queue_datas._by_reported.keys() == groups.keys()
    fleet.routes.heartbeats.end_channel(fleet.channels["-2"])
    hold = next(fleet.routes.removals.on_channel_destroy([fleet.channels["-2"]]))
    hold.prepare()
    assert len(queue_datas._by_reported) == 4, "of those that it would bring back, too"
    fleet.register("other:10911", name="other")
    assert queue_datas._by_reported.keys() == groups.keys()
    assert len(queue_datas._by_fragment) == 3
