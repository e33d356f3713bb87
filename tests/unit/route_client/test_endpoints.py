"""Which name server to ask, and when to try again."""

from __future__ import annotations

import random

import pytest

from namesrv_common.endpoints import Endpoint
from route_client.endpoints import MAX_BACKOFF_SECONDS, EndpointChooser, EndpointList
from route_client.errors import EndpointListError, RouteClientError
from tests.support.virtual_clock import VirtualClock

A, B, C = (Endpoint(name, 9876) for name in "abc")


def chooser(*endpoints: Endpoint, seed: int = 0, clock: VirtualClock | None = None) -> EndpointChooser:
    return EndpointChooser(endpoints or (A, B, C), random.Random(seed), clock or VirtualClock())


def test_a_list_has_addresses_and_names_that_stand_for_several() -> None:
    parsed = EndpointList.parse("a:9876; b:9876,dns:c:9876")
    assert (parsed.fixed, parsed.dns_names) == ((A, B), (C,))
    assert EndpointList.parse(["a:9876", "dns:c:9876"]).unresolved == (A, C)
    assert EndpointList.parse("dns:c:9876").fixed == ()
    none_given = "no name server was given and NAMESRV_ADDR is not set"
    for texts, problem in (("", "empty"), ([], "empty"), ("a", "has no port"), ("dns:", "empty"), (None, none_given)):
        with pytest.raises(EndpointListError, match=problem) as caught:
            EndpointList.parse(texts, {})
        assert isinstance(caught.value, RouteClientError)
        assert isinstance(caught.value, ValueError)


def test_it_begins_anywhere_and_leaves_one_that_fails_for_the_next_at_once() -> None:
    assert {chooser(seed=seed).current for seed in range(30)} == {A, B, C}
    choice = chooser()
    order = choice.in_order()
    assert choice.current == order[0]
    assert choice.delay_seconds() == 0
    for step in (1, 2):
        choice.failed(choice.current)
        assert choice.current == order[step]
        assert choice.delay_seconds() == 0
    choice.failed(choice.current)
    assert choice.current == order[0]


def test_after_a_whole_round_it_waits_ever_longer_up_to_a_bound_with_jitter() -> None:
    choice = chooser(A)
    delays = []
    for _ in range(20):
        choice.failed(A)
        delays.append(choice.delay_seconds())
    assert 0.16 <= delays[0] <= 0.24
    assert delays[4] > delays[0]
    assert min(delays[-5:]) >= 0.8 * MAX_BACKOFF_SECONDS
    assert max(delays) <= 1.2 * MAX_BACKOFF_SECONDS
    assert len(set(delays[-5:])) == 5
    choice.succeeded(A)
    assert choice.delay_seconds() == 0
    assert not choice.all_failed


def test_one_that_asks_for_time_gets_a_minute_at_most_while_it_is_listed() -> None:
    clock = VirtualClock()
    choice = chooser(A, B, clock=clock)
    first, other = choice.in_order()
    choice.failed(first, retry_after_seconds=60)
    assert choice.current == other
    choice.failed(other)
    assert choice.current == other, "the first one does not want to be asked yet"
    clock.advance(60)
    choice.failed(other)
    assert choice.current == first
    alone = chooser(A)
    alone.failed(A, retry_after_seconds=1e9)
    alone.update([A])
    alone.choose_anew()
    assert alone.current == A
    assert alone.delay_seconds() == pytest.approx(60)
    alone.update([B])
    alone.succeeded(B)
    alone.update([A])
    assert alone.delay_seconds() == 0


def test_one_that_let_a_lookup_wait_is_asked_last_for_a_while() -> None:
    clock = VirtualClock()
    choice = chooser(clock=clock)
    first = choice.current
    choice.doubt(first)
    choice.update([A, B, C])
    assert choice.in_order()[-1] == first
    assert choice.current == first, "its watch may be well"
    clock.advance(31)
    assert choice.in_order()[0] == first
    choice.doubt(first)
    choice.succeeded(first)
    assert choice.in_order()[0] == first


def test_a_new_list_keeps_the_current_one_if_it_has_it() -> None:
    choice = chooser(A, B)
    current, other = choice.in_order()
    choice.update([C, current])
    assert choice.current == current
    assert set(choice.in_order()) == {current, C}
    choice.update([C, other])
    assert choice.current == C
    choice.failed(current)
    assert choice.current == C, "the call that has failed began before"


def test_it_can_choose_anew_among_those_that_want_to_be_asked() -> None:
    choice = chooser()
    first = choice.current
    choice.failed(first, retry_after_seconds=60.0)
    chosen = set()
    for _ in range(100):
        choice.choose_anew()
        chosen.add(choice.current)
    assert chosen == {A, B, C} - {first}
    for endpoint in choice.in_order():
        choice.failed(endpoint, retry_after_seconds=60.0)
    current = choice.current
    for _ in range(20):
        choice.choose_anew()
        assert choice.current == current, "nobody wants to be asked"
