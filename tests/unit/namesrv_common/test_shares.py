"""Shares: what one caller may hold, what is kept for operators, and that everything comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from namesrv_common.endpoints import LOOPBACK
from namesrv_common.errors import CommonReason, Refused
from namesrv_common.server.health_service import ShareGate
from namesrv_common.server.shares import EVERYBODY, MACHINE, Sharer, ShareRules, Shares, sharer_at
from tests.properties import Machine, machine_test
from tests.support.refusals import refuses

GREEDY, HONEST, OPERATOR = Sharer("greedy"), Sharer("honest"), Sharer("operator", is_operator=True)


def take_all(shares: Shares, sharer: Sharer) -> tuple[int, dict[str, str]]:
    """Takes until it is refused; how many that were, and what the refusal said."""
    taken = 0
    while True:
        try:
            shares.take(sharer)
        except Refused as error:
            return taken, error.metadata
        taken += 1


def test_a_caller_has_its_share_and_is_told_whose_bound_it_met() -> None:
    shares = Shares("things", 100)
    assert take_all(shares, GREEDY) == (50, {"name": "things", "value": "51", "limit": "50", "caller": "greedy"})
    assert take_all(shares, HONEST) == (30, {"name": "things", "value": "81", "limit": "80", "caller": EVERYBODY})
    assert take_all(shares, OPERATOR) == (20, {"name": "things", "value": "101", "limit": "100", "caller": EVERYBODY})
    assert (shares.used, shares.refused) == (100, 3)


def test_a_caller_has_one_of_the_fewest_things() -> None:
    assert take_all(Shares("things", 1), GREEDY)[0] == 1


def test_rules_are_percents() -> None:
    shares = Shares("things", 1_000, ShareRules(caller_percent=10, kept_percent=0))
    assert [take_all(shares, Sharer(str(number)))[0] for number in range(11)] == [100] * 10 + [0]


@pytest.mark.parametrize("rules", [ShareRules(), ShareRules(caller_percent=100), ShareRules(kept_percent=0)])
@pytest.mark.parametrize("most", [0, 1, 3, 10])
def test_there_is_room_for_anyone_exactly_while_nobody_could_be_refused(most: int, rules: ShareRules) -> None:
    shares = Shares("things", most, rules)
    while shares.has_room_for_anyone():
        for sharer in (GREEDY, HONEST, OPERATOR, MACHINE):
            with shares.holding(sharer):
                pass
        shares.take(GREEDY)
    assert shares.refused == 0
    with refuses(CommonReason.LIMIT_EXCEEDED):
        shares.take(GREEDY)


def test_what_is_refused_takes_nothing_and_what_is_held_ends_with_its_context() -> None:
    shares = Shares("things", 10)
    with shares.holding(HONEST, 5):
        with refuses(CommonReason.LIMIT_EXCEEDED), shares.holding(HONEST, 1):
            raise AssertionError("that is one too many")
        assert shares.used == 5
    with pytest.raises(ZeroDivisionError), shares.holding(HONEST, 5):
        raise ZeroDivisionError
    assert shares.used == 0


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv4:127.0.0.1:4711", LOOPBACK),
        ("ipv6:%5B::1%5D:4711", LOOPBACK),
        ("ipv6:[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.1]:4711", "10.0.0.1"),
        ("unix:/run/namesrv.sock", LOOPBACK),
        ("unix:", LOOPBACK),
        ("rocketmq:10.0.0.1:4711", "10.0.0.1"),
        ("rocketmq:2001:db8:1:2:3::4:4711", "2001:db8:1:2::/64"),
        ("rocketmq:unknown", "unknown"),
    ],
)
def test_without_an_identity_it_is_the_address_whatever_the_port(peer: str, name: str) -> None:
    sharer = sharer_at(peer)
    assert sharer.name == name
    assert sharer.is_operator == sharer.is_many == (name == LOOPBACK)


SHARERS = (GREEDY, HONEST, OPERATOR, MACHINE)


class SharesMachine(Machine):
    """Callers take and give back in any order."""

    outcomes = frozenset({"taken", "over its share", "kept for operators", "all taken"})

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares("things", 20)
        self.held: list[tuple[Sharer, int]] = []

    def of(self, sharer: Sharer) -> int:
        return sum(amount for other, amount in self.held if other is sharer)

    @rule(sharer=st.sampled_from(SHARERS), amount=st.integers(1, 12))
    def take(self, sharer: Sharer, amount: int) -> None:
        used = sum(held for _, held in self.held) + amount
        fits = used <= (20 if sharer.is_operator else 16) and (sharer is MACHINE or self.of(sharer) + amount <= 10)
        try:
            self.shares.take(sharer, amount)
        except Refused:
            assert not fits
            whole = "all taken" if used > 20 else "kept for operators"
            self.reaches("over its share" if used <= 16 else whole)
        else:
            assert fits
            self.reaches("taken")
            self.held.append((sharer, amount))

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.held:
            self.shares.give_back(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def what_is_used_is_what_is_held(self) -> None:
        assert self.shares.used == sum(amount for _, amount in self.held)

    def teardown(self) -> None:
        for sharer, amount in self.held:
            self.shares.give_back(sharer, amount)
        assert self.shares.used == 0
        assert not self.shares._held


TestSharesMachine = machine_test(SharesMachine, 100, steps=50)


@dataclass
class Caller:
    """The context of a call, as far as the gate looks at it."""

    address: str

    def peer(self) -> str:
        return self.address


def test_one_address_has_its_share_of_the_open_calls_until_they_end() -> None:
    gate = ShareGate(Shares("open calls", 10))
    one: Any = Caller("ipv4:10.0.0.1:4711")
    other: Any = Caller("ipv4:10.0.0.2:4711")
    entered = [gate.enter(one) for _ in range(5)]
    with refuses(CommonReason.LIMIT_EXCEEDED, match=r"open calls: 6 is over the limit of 5 for 10\.0\.0\.1"):
        gate.enter(one)
    gate.enter(other)
    gate.leave(entered[0])
    gate.enter(one)
