"""Whose losses the guard counts: nobody's registrations decide over the brokers of another principal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from namesrv.core.policy import Behaviour
from namesrv.core.removals import Hold, Removal, on_channel_destroy
from namesrv.core.state import RouteState
from tests.support.breaths import AtBreath, breathing, short_breaths
from tests.support.core_fleet import Fleet

WINDOW = Behaviour().mass_loss_window_seconds
MANY = 150


class OwnedFleet(Fleet):
    """Masters of a group each, with a channel each, of some principals."""

    def __init__(self, brokers: dict[str, int]) -> None:
        super().__init__()
        self.channels: dict[str, str] = {}
        for principal, count in brokers.items():
            for number in range(count):
                self.come(f"{principal}-{number}", principal)

    def come(self, name: str, principal: str) -> None:
        self.channels[name] = channel = self.heartbeats.open_channel()
        self.register(f"{name}:10911", name=name, topics=(name,), channel_id=channel, principal=principal)

    def flood(self, principal: str) -> str:
        """Many registrations of one principal over one channel."""
        channel = self.heartbeats.open_channel()
        for number in range(MANY):
            self.register(
                f"flood.{number}:1", number, name=f"{principal}-flood", channel_id=channel, principal=principal
            )
        return channel

    def lose(self, *names: str) -> None:
        for name in names:
            self.end_channel(self.channels[name])

    def is_routed(self, name: str) -> bool:
        return name in self.topics

    @property
    def held(self) -> set[str]:
        return {key.broker_addr.partition(":")[0] for key in self.state.unconfirmed}


def names(principal: str, numbers: range) -> set[str]:
    return {f"{principal}-{number}" for number in numbers}


def test_a_flood_of_one_principal_holds_no_dead_broker_of_another() -> None:
    fleet = OwnedFleet({"attacker": 1, "victim": 6})
    fleet.end_channel(fleet.flood("attacker"))
    assert len(fleet.held) == MANY
    fleet.lose("victim-0", "victim-1", "victim-2")
    assert not any(fleet.is_routed(f"victim-{number}") for number in range(3))
    assert len(fleet.held) == MANY


def test_brokers_of_one_principal_that_live_hide_no_mass_loss_of_another() -> None:
    fleet = OwnedFleet({"attacker": 1, "victim": 9})
    fleet.flood("attacker")
    fleet.lose(*sorted(names("victim", range(5))))
    assert fleet.held == names("victim", range(5))


def test_losses_of_several_principals_do_not_count_together() -> None:
    fleet = OwnedFleet({"a": 2, "b": 2, "c": 2})
    fleet.lose(*fleet.channels)
    assert not fleet.held
    assert not fleet.topics


def test_a_broker_counts_for_the_principal_that_registered_it_last() -> None:
    fleet = OwnedFleet({"a": 3, "b": 10})
    fleet.come("a-2", "b")
    fleet.lose(*sorted(names("a", range(3))))
    assert not fleet.held


def test_what_the_guard_remembers_ends_with_the_window() -> None:
    fleet = OwnedFleet({"x": 3})
    fleet.end_channel(fleet.flood("x"))
    fleet.clock.advance(WINDOW + 1)
    fleet.come("x-0", "x")
    guard = fleet.state.guard
    assert (len(guard._principals), len(guard._losses)) == (3, 0)
    assert (dict(guard._brokers), dict(guard._lost)) == ({"x": 3}, {})


def test_a_loss_counts_for_one_window_whatever_another_principal_lost_in_between() -> None:
    fleet = OwnedFleet({"x": 10, "y": 10})
    fleet.lose("x-0", "x-1")
    fleet.clock.advance(WINDOW / 4)
    fleet.lose(*sorted(names("y", range(7))))
    fleet.clock.advance(WINDOW / 4)
    fleet.lose(*sorted(names("x", range(2, 7))))
    assert len(fleet.held) == 14
    fleet.clock.advance(0.6 * WINDOW)
    fleet.come("z-0", "z")
    losses = {key.broker_addr.partition(":")[0] for key in fleet.state.guard._losses}
    assert losses == names("y", range(7)) | names("x", range(2, 7))


def test_tables_that_freeze_bring_nothing_back() -> None:
    for moment in itertools.count():
        fleet = OwnedFleet({"x": 7})
        fleet.lose("x-0", "x-1", "x-2")
        assert not fleet.state.unconfirmed
        fleet.heartbeats.end_channel(fleet.channels["x-3"])
        frozen_at: list[int] = []

        def freeze(state: RouteState = fleet.state, frozen_at: list[int] = frozen_at) -> None:
            state.frozen = True
            frozen_at.append(state.revision)

        breath = AtBreath(moment, freeze)
        losing = on_channel_destroy(fleet.state, [fleet.channels["x-3"]])
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
    queue_datas = fleet.state.index.queue_datas
    assert queue_datas._by_reported.keys() == fleet.state.tables.broker_addr_table.keys()
    fleet.heartbeats.end_channel(fleet.channels["-2"])
    hold = next(on_channel_destroy(fleet.state, [fleet.channels["-2"]]))
    hold.prepare()
    assert len(queue_datas._by_reported) == 4, "of those that it would bring back, too"
    fleet.register("other:10911", name="other")
    assert queue_datas._by_reported.keys() == fleet.state.tables.broker_addr_table.keys()
    assert len(queue_datas._by_fragment) == 3
