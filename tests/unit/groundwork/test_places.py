"""Places of connections: bounded in all and by address, and a newcomer that asks at once always has one."""

from __future__ import annotations

import pytest

from groundwork.places import LOOPBACK, PlaceRules, Places, owner_of

RULES = PlaceRules(most=6, most_by_address=3, request_seconds=5.0, patience_seconds=1.0)
REMOTE = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> Places[str]:
    return Places(RULES, clock)


def test_an_address_that_has_too_many_loses_the_one_that_has_asked_for_nothing_for_longest(
    places: Places[str], clock: Clock
) -> None:
    for name in ("a", "b", "c"):
        assert places.admit(name, REMOTE[0]) == (True, None)
        clock.now += 0.1
    places.asked("a")
    assert places.admit("d", REMOTE[0]) == (True, "b")
    assert len(places) == 3


def test_who_is_being_answered_gives_way_only_after_a_while(places: Places[str], clock: Clock) -> None:
    for name in ("a", "b", "c"):
        places.admit(name, REMOTE[0])
        places.asked(name)
    assert places.admit("d", REMOTE[0]) == (False, None)
    clock.now += RULES.patience_seconds
    assert places.admit("d", REMOTE[0]) == (True, "a")


def test_when_all_places_are_taken_the_address_with_most_loses_one(places: Places[str]) -> None:
    for address, count in zip(REMOTE, (1, 3, 2), strict=False):
        for number in range(count):
            assert places.admit(f"{address} {number}", address) == (True, None)
    assert places.admit("new", REMOTE[3]) == (True, f"{REMOTE[1]} 0")
    assert len(places) == RULES.most


def test_loopback_has_places_of_its_own(places: Places[str]) -> None:
    for address in REMOTE[:2]:
        for number in range(3):
            places.admit(f"{address} {number}", address)
            places.asked(f"{address} {number}")
    assert places.admit("remote", REMOTE[2]) == (False, None)
    for number in range(3):
        assert places.admit(f"local {number}", f"127.0.0.{number}") == (True, None)
    assert places.admit("one more", "::1") == (True, "local 0")


def test_a_connection_is_late_a_while_after_its_begin_or_its_last_answer(places: Places[str], clock: Clock) -> None:
    places.admit("a", REMOTE[0])
    places.admit("b", REMOTE[0])
    places.admit("stream", REMOTE[0])
    places.asked("a")
    places.asked("stream", lasting=True)
    clock.now += 3.0
    places.answered("b")
    clock.now += 2.0
    assert places.late() == ["a"], "a request that has come is answered in time, too"
    assert places.admit("d", REMOTE[0]) == (True, "b")
    clock.now += 10.0
    assert "stream" not in places.late()


def test_streams_give_way_to_nobody(places: Places[str], clock: Clock) -> None:
    for name in ("a", "b", "c"):
        places.admit(name, REMOTE[0])
        places.asked(name, lasting=True)
    clock.now += 100.0
    assert places.admit("d", REMOTE[0]) == (False, None)
    places.leave("b")
    places.leave("b")
    places.asked("b")
    assert places.admit("d", REMOTE[0]) == (True, None)


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("127.0.0.1", LOOPBACK),
        ("127.9.9.9", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_whose_places_an_address_takes(address: str, owner: str) -> None:
    assert owner_of(address) == owner
