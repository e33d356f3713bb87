"""How long who guesses has to wait, and who does not."""

from __future__ import annotations

from nsctl.console.log_in import (
    FORGET_SECONDS,
    FREE_GUESSES,
    LONGEST_ADDRESS_SECONDS,
    LONGEST_NAME_SECONDS,
    MAX_ADDRESSES,
    Guesses,
)
from tests.support.virtual_clock import VirtualClock

HERE, THERE = "10.0.0.1", "10.0.0.2"


def guessing(clock: VirtualClock) -> Guesses:
    return Guesses(clock.monotonic)


def guess(guesses: Guesses, clock: VirtualClock, times: int, address: str = HERE, name: str | None = None) -> float:
    """So many wrong ones, each as soon as it is looked at; how long all of them took."""
    begin = clock.monotonic()
    for _ in range(times):
        clock.advance(guesses.left(address, name))
        guesses.begin(address, name)
    return clock.monotonic() - begin


def test_the_first_guesses_are_free_and_each_further_one_costs_twice_as_much_up_to_a_minute() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    assert guess(guesses, clock, FREE_GUESSES) == 0
    assert guess(guesses, clock, 4) == 1 + 2 + 4 + 8
    guess(guesses, clock, 10)
    assert guess(guesses, clock, 1) == LONGEST_ADDRESS_SECONDS
    assert guesses.left(THERE, None) == 0


def test_guesses_at_once_are_no_way_around_the_pauses() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    looked_at = 0
    for _ in range(1_000):
        if not guesses.left(HERE, None):
            guesses.begin(HERE, None)
            looked_at += 1
    assert looked_at == FREE_GUESSES


def test_a_name_that_is_tried_from_many_addresses_has_pauses_of_its_own() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    for number in range(20):
        clock.advance(guesses.left(f"10.1.0.{number}", "maria"))
        guesses.begin(f"10.1.0.{number}", "maria")
    assert guesses.left("10.2.0.1", "maria") == LONGEST_NAME_SECONDS
    assert guesses.left("10.2.0.1", "other") == 0


def test_a_person_is_not_kept_out_from_where_he_has_logged_in_before() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    guesses.begin(HERE, "maria")
    guesses.right(HERE, "maria")
    guess(guesses, clock, 20, THERE, "maria")
    assert guesses.left(THERE, "maria") > 0
    assert guesses.left(HERE, "maria") == 0


def test_a_right_one_and_a_quarter_of_an_hour_begin_anew() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    guess(guesses, clock, 10)
    guesses.right(HERE, None)
    assert guess(guesses, clock, FREE_GUESSES) == 0
    guess(guesses, clock, 10)
    clock.advance(FORGET_SECONDS + 1)
    assert guess(guesses, clock, FREE_GUESSES) == 0


def test_no_more_than_so_many_addresses_are_remembered() -> None:
    clock = VirtualClock()
    guesses = guessing(clock)
    guess(guesses, clock, FREE_GUESSES)
    for number in range(MAX_ADDRESSES + 5):
        guesses.begin(str(number), None)
    assert len(guesses._addresses._tried) == MAX_ADDRESSES
    assert guesses.left(HERE, None) == 0


def test_the_addresses_of_an_ipv6_network_share_a_pause() -> None:
    guesses = guessing(VirtualClock())
    for number in range(FREE_GUESSES + 1):
        guesses.begin(f"2001:db8::{number}", None)
    assert guesses.left("2001:db8::ffff", None) > 0
    assert guesses.left("2001:db8:0:1::1", None) == 0
