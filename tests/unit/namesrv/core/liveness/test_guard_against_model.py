"""Whatever principals register and lose, the guard holds what a plain model says that it should.

The model counts everything anew for each loss, from a list of brokers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from namesrv.core.model import Behaviour
from namesrv.core.removals import on_channel_destroy
from tests.properties import Machine, machine_test
from tests.support.core_fleet import Fleet
from tests.support.state_changes import apply_all_now

NUMBERS = Behaviour(mass_loss_percent=50, mass_loss_min_brokers=3)
WINDOW, HOLD = NUMBERS.mass_loss_window_seconds, NUMBERS.mass_loss_hold_seconds
FOR_EVER = 1e6
BROKERS = st.integers(0, 9)


@dataclass
class Broker:
    """A broker that registered, for as long as it counts."""

    principal: str
    lost_at: float | None = None
    """When it was lost, within the window."""
    held_until: float | None = None
    """Until when it is in the routes though it was lost."""
    is_in: bool = True
    """Whether it is in the routes."""

    @property
    def is_live(self) -> bool:
        return self.is_in and self.held_until is None


def group_of(number: int) -> int:
    return number // 2


class Model:
    def __init__(self) -> None:
        self.now = 0.0
        self.brokers: dict[int, Broker] = {}

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for number, broker in list(self.brokers.items()):
            if broker.lost_at is not None and broker.lost_at + WINDOW < self.now:
                broker.lost_at = None
            if broker.held_until is not None and broker.held_until < self.now:
                broker.is_in = False
            if not broker.is_in and broker.lost_at is None:
                del self.brokers[number]

    def come(self, number: int, principal: str) -> None:
        self.brokers[number] = Broker(principal)

    def leave(self, number: int) -> None:
        """A broker unregisters. If it was lost before, that continues counting."""
        broker = self.brokers[number]
        broker.is_in = False
        if broker.lost_at is None:
            del self.brokers[number]

    def lose(self, numbers: list[int]) -> None:
        for number in numbers:
            self.brokers[number].lost_at = self.now
        losing = {self.brokers[number].principal for number in numbers}
        distrusted = {principal for principal in losing if self.is_distrusted(principal)}
        for number, broker in self.brokers.items():
            if broker.lost_at is None or broker.held_until is not None:
                continue
            if broker.principal in distrusted:
                broker.is_in, broker.held_until = True, self.now + HOLD
            elif number in numbers:
                broker.is_in = False

    def is_distrusted(self, principal: str) -> bool:
        counted = [broker for broker in self.brokers.values() if broker.is_live or broker.lost_at is not None]
        mine = [broker.lost_at is not None for broker in counted if broker.principal == principal]
        return sum(mine) >= 3 and sum(mine) / len(mine) > 0.5


class GuardAgreesWithTheModel(Machine):
    outcomes = frozenset({"believed", "held", "brought back", "confirmed again", "given up"})

    def __init__(self) -> None:
        super().__init__()
        self.fleet, self.model = Fleet(NUMBERS), Model()
        self.channels: dict[int, str] = {}

    @rule(number=BROKERS, principal=st.sampled_from("ab"))
    def comes(self, number: int, principal: str) -> None:
        self.register(number, principal)

    @rule(numbers=st.sets(BROKERS, min_size=3))
    def a_fleet_comes(self, numbers: set[int]) -> None:
        """The groups belong to the principals in turn."""
        for number in numbers:
            self.register(number, "ab"[group_of(number) % 2])

    def register(self, number: int, principal: str) -> None:
        self.channels[number] = self.fleet.state.open_channel()
        self.fleet.register(
            f"10.0.0.{number}:1", number, (f"topic-{number}",), name=f"broker-{group_of(number)}",
            channel_id=self.channels[number], timeout_seconds=FOR_EVER, principal=principal,
        )  # fmt: skip
        known = self.model.brokers.get(number)
        if known is not None and known.is_in and known.held_until is not None:
            self.reaches("confirmed again")
        self.model.come(number, principal)

    @rule(number=BROKERS)
    def unregisters(self, number: int) -> None:
        broker = self.model.brokers.get(number)
        gone = self.fleet.unregister(f"10.0.0.{number}:1", name=f"broker-{group_of(number)}")
        assert (gone is not None) == (broker is not None and broker.is_in)
        if gone is not None:
            self.model.leave(number)

    @rule(numbers=st.sets(BROKERS, min_size=1), together=st.booleans())
    def channels_end(self, numbers: set[int], together: bool) -> None:
        live = sorted(number for number in numbers if number in self.model.brokers)
        live = [number for number in live if self.model.brokers[number].is_live]
        for some in [live] if together else [[number] for number in live]:
            for number in some:
                self.fleet.state.liveness.end_channel(self.channels[number])
            apply_all_now(on_channel_destroy(self.fleet.state, [self.channels[number] for number in some]))
            if some:
                self.lose(some)
            self.routes_agree()

    def lose(self, numbers: list[int]) -> None:
        gone = {number for number, broker in self.model.brokers.items() if not broker.is_in}
        self.model.lose(numbers)
        for number, broker in self.model.brokers.items():
            if number in numbers:
                self.reaches("held" if broker.is_in else "believed")
            elif number in gone and broker.is_in:
                self.reaches("brought back")

    @rule(seconds=st.sampled_from([1, 10, 29, 30, 31, 600]))
    def time_passes(self, seconds: int) -> None:
        self.fleet.clock.advance(seconds)
        self.fleet.scan()
        held = sum(broker.is_in and not broker.is_live for broker in self.model.brokers.values())
        self.model.pass_time(seconds)
        if held > sum(broker.is_in and not broker.is_live for broker in self.model.brokers.values()):
            self.reaches("given up")

    @precondition(lambda self: any(broker.lost_at is not None for broker in self.model.brokers.values()))
    @rule(by=st.sampled_from([-1, 0, 1]), numbers=st.sets(BROKERS, min_size=2), together=st.booleans())
    def more_are_lost_as_the_window_ends(self, by: int, numbers: set[int], together: bool) -> None:
        last = max(broker.lost_at for broker in self.model.brokers.values() if broker.lost_at is not None)
        seconds = last + WINDOW + by - self.model.now
        if seconds > 0:
            self.time_passes(seconds=int(seconds))
        self.channels_end(numbers=numbers, together=together)

    @precondition(lambda self: any(broker.held_until is not None for broker in self.model.brokers.values()))
    @rule()
    def nobody_comes_for_long(self) -> None:
        self.time_passes(seconds=int(HOLD) + 1)

    @invariant()
    def routes_agree(self) -> None:
        live = {key.broker_addr: row.unconfirmed for key, row in self.fleet.state.tables.broker_live_table.items()}
        assert live == {
            f"10.0.0.{number}:1": not broker.is_live for number, broker in self.model.brokers.items() if broker.is_in
        }


TestGuardAgreesWithTheModel = machine_test(GuardAgreesWithTheModel, 60, steps=30)


def test_what_the_guard_remembers_ends_with_the_window(fleet: Fleet) -> None:
    channel = fleet.state.open_channel()
    for number in range(150):
        fleet.register(f"flood.{number}:1", number, name="flood", channel_id=channel, principal="x")
    fleet.end_channel(channel)
    fleet.clock.advance(Behaviour().mass_loss_window_seconds + 1)
    fleet.register(principal="x")
    guard = fleet.state.guard
    assert (len(guard._principals), len(guard._losses)) == (1, 0)
    assert (guard._brokers, guard._lost) == ({"x": 1}, {"x": 0})
