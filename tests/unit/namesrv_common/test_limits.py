"""Limits on answers, log lines, open calls, connections and what callers hold, and pauses after failures."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from structlog.testing import capture_logs

from namesrv_common.backoff import Backoff
from namesrv_common.client.channels import ResponseBudget, ResponseLimits, ResponseTooLarge
from namesrv_common.endpoints import LOOPBACK
from namesrv_common.errors import CommonReason, not_permitted
from namesrv_common.process.logs import RateLimitedLog
from namesrv_common.server.health_service import ShareGate
from namesrv_common.server.metrics_http import Connections
from namesrv_common.server.permits import CHECK_SLICE, OpenCalls
from namesrv_common.server.shares import EVERYBODY, MACHINE, Sharer, ShareRules, Shares, sharer_at
from tests.properties import Machine, machine_test
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock

LIMITS = ResponseLimits(bytes=1_000, rows=10, seconds=60.0)


@pytest.mark.parametrize(
    ("taken_bytes", "rows", "seconds", "problem"),
    [
        (1_001, 10, 60.0, "1,001 bytes so far, over the limit of 1,000"),
        (1_000, 11, 60.0, "11 rows so far, over the limit of 10"),
        (1_000, 10, 61.0, "61 seconds so far, over the limit of 60"),
    ],
)
def test_an_answer_is_accepted_up_to_each_limit_and_again_once_begun_anew(
    taken_bytes: int, rows: int, seconds: float, problem: str
) -> None:
    clock = VirtualClock()
    budget = ResponseBudget("a snapshot", LIMITS, clock.monotonic)
    for _ in range(2):
        clock.advance(1_000.0)  # nothing has come yet: the time before counts elsewhere
        budget.take(400, 4)
        clock.advance(60.0)
        budget.take(600, 6)
        budget.begin_anew()
    budget.take(0)
    clock.advance(seconds)
    with pytest.raises(ResponseTooLarge, match=f"^a snapshot has {problem}$"):
        budget.take(taken_bytes, rows)


@pytest.mark.parametrize(
    ("burst", "moments", "suppressed"),
    [
        (1, [0.0, 0.5, 0.9, 1.0, 1.1, 9.0], [0, 2, 1]),
        (3, [0.0] * 10 + [1.0, 1.0, 2.0], [0, 0, 0, 7, 1]),
        (2, [0.0, 0.0, 100.0, 100.0, 100.0], [0, 0, 0, 0]),
    ],
    ids=["no burst", "after a burst", "a burst after a rest"],
)
def test_a_line_stands_for_its_time_and_says_how_many_before_it_were_suppressed(
    burst: int, moments: list[float], suppressed: list[int]
) -> None:
    clock = VirtualClock()
    log = RateLimitedLog("it_happened", 1.0, clock, burst=burst)
    with capture_logs() as lines:
        for moment in moments:
            clock.seconds = moment
            log.log(peer="p")
    assert all((line["event"], line["log_level"], line["peer"]) == ("it_happened", "warning", "p") for line in lines)
    assert [line["not_told"] for line in lines] == suppressed


def test_the_backoff_grows_up_to_its_longest_step_with_jitter() -> None:
    jitter = (0.8, 1.2)
    backoff, same_chance = Backoff(0.2, 1.0, jitter, rng=random.Random(7), factor=1.6), random.Random(7)
    for failures, step in enumerate([0.2, 0.32, 0.512, 0.8192, 1.0, 1.0], start=1):
        assert backoff.after(failures) == pytest.approx(step * same_chance.uniform(*jitter))
    by_default = Backoff(0.2, 1.0, rng=random.Random(7))
    default_chance = random.Random(7)
    for failures, step in ((2, 0.4), (10**6, 1.0)):
        assert by_default.after(failures) == pytest.approx(step * default_chance.uniform(0.5, 1.0))


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", LOOPBACK),
        ("ipv6:[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("unix:/run/namesrv.sock", LOOPBACK),
        ("rocketmq:2001:db8:1:2:3::4:4711", "2001:db8:1:2::/64"),
        ("rocketmq:fe80::1%eth0:4711", "fe80::/64"),
        ("rocketmq:::ffff:10.0.0.1:4711", "10.0.0.1"),
        ("rocketmq:::ffff:127.0.0.1:4711", LOOPBACK),
        ("rocketmq:unknown", "unknown"),
    ],
)
def test_without_an_identity_it_is_the_address_whatever_the_port(peer: str, name: str) -> None:
    sharer = sharer_at(peer)
    assert sharer.name == name
    assert sharer.is_operator == sharer.is_many == (name == LOOPBACK)


SHARERS = (Sharer("greedy"), Sharer("honest"), Sharer("operator", is_operator=True), MACHINE)
RULES = ((50, 20), (100, 20), (10, 0))
"""Percents of one caller, and of what operators have for themselves. The first ones are the defaults."""


class SharesMachine(Machine):
    """Callers take and give back in any order."""

    outcomes = frozenset({"taken", "over its share", "kept for operators", "all taken"})

    @initialize(most=st.sampled_from([0, 1, 3, 20]), rules=st.sampled_from(RULES))
    def begin(self, most: int, rules: tuple[int, int]) -> None:
        self.shares = Shares("things", most, None if rules == RULES[0] else ShareRules(*rules))
        of_caller, kept = rules
        self.most, self.most_of_caller = most, max(1, most * of_caller // 100)
        self.most_but_of_operators = most - most * kept // 100
        self.held: list[tuple[Sharer, int]] = []
        self.refused = 0

    def of(self, sharer: Sharer) -> int:
        return sum(amount for other, amount in self.held if other is sharer)

    @rule(sharer=st.sampled_from(SHARERS), amount=st.integers(1, 12))
    def take(self, sharer: Sharer, amount: int) -> None:
        of_caller, used = self.of(sharer) + amount, sum(held for _, held in self.held) + amount
        of_all = self.most if sharer.is_operator else self.most_but_of_operators
        if sharer is not MACHINE and of_caller > self.most_of_caller:
            outcome, told = "over its share", (of_caller, self.most_of_caller, sharer.name)
        elif used > of_all:
            outcome, told = "all taken" if used > self.most else "kept for operators", (used, of_all, EVERYBODY)
        else:
            self.shares.take(sharer, amount)
            self.held.append((sharer, amount))
            self.reaches("taken")
            return
        self.reaches(outcome)
        self.refused += 1
        value, limit, caller = map(str, told)
        with refuses(CommonReason.LIMIT_EXCEEDED) as caught:
            self.shares.take(sharer, amount)
        assert caught.value.metadata == {"name": "things", "value": value, "limit": limit, "caller": caller}

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.held:
            self.shares.give_back(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def what_is_used_is_what_is_held(self) -> None:
        assert (self.shares.used, self.shares.refused) == (sum(amount for _, amount in self.held), self.refused)

    @invariant()
    def there_is_room_for_anyone_while_nobody_could_be_refused(self) -> None:
        nobody = self.shares.used < min(self.most_of_caller, self.most_but_of_operators)
        assert self.shares.has_room_for_anyone() == nobody


TestSharesMachine = machine_test(SharesMachine, 100, steps=50)


def test_one_address_has_its_share_of_the_open_calls_until_they_end() -> None:
    shares = Shares("open calls", 10)
    gate = ShareGate(shares)
    with shares.holding(MACHINE, 10):
        assert not gate.has_room()
    with pytest.raises(ZeroDivisionError), shares.holding(MACHINE, 10):
        raise ZeroDivisionError
    assert gate.has_room()
    one: Any = SimpleNamespace(peer=lambda: "ipv4:10.0.0.1:4711")
    other: Any = SimpleNamespace(peer=lambda: "ipv4:10.0.0.2:4711")
    entered = [gate.enter(one) for _ in range(5)]
    with refuses(CommonReason.LIMIT_EXCEEDED, match=r"open calls: 6 is over the limit of 5 for 10\.0\.0\.1"):
        gate.enter(one)
    gate.enter(other)
    gate.leave(entered[0])
    gate.enter(one)


REFUSAL = not_permitted("shop", "look up")


def refused() -> None:
    raise REFUSAL


async def test_a_call_that_swallows_its_end_is_refused_unless_its_caller_left() -> None:
    calls = OpenCalls()

    async def call(*swallowed: type[BaseException]) -> None:
        with calls.while_allowed(refused), contextlib.suppress(*swallowed):
            await asyncio.Event().wait()

    refuse_it, leave_it = asyncio.create_task(call(asyncio.CancelledError)), asyncio.create_task(call())
    await asyncio.wait([refuse_it, leave_it], timeout=0)
    await calls.check_again()
    leave_it.cancel()
    with refuses(CommonReason.NOT_PERMITTED):
        await refuse_it
    assert refuse_it.cancelling() == 0, "nobody but us cancelled it, and what answers it may still wait"
    with pytest.raises(asyncio.CancelledError):
        await leave_it


async def test_each_call_that_lasts_is_ended_once_and_others_run_between_slices() -> None:
    calls = OpenCalls()
    left, *connections = (mock.Mock(**{"check.side_effect": REFUSAL}) for _ in range(3 * CHECK_SLICE + 1))
    for connection in (*connections, left):
        calls.add(connection)
    with calls.while_allowed(partial(pytest.fail, "it has ended")):
        pass
    checking = asyncio.create_task(calls.check_again())
    seen = []
    while not checking.done():
        await asyncio.sleep(0)
        calls.remove(left)
        seen.append(sum(connection.end.call_count for connection in connections))
    assert set(seen) == {CHECK_SLICE, 2 * CHECK_SLICE, 3 * CHECK_SLICE}
    await calls.check_again()
    assert all(connection.end.call_args_list == [mock.call(REFUSAL)] for connection in connections)
    left.end.assert_not_called()


class Transport(asyncio.Transport):
    """A connection without a network."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return self.is_cut


def heard(connections: Connections, address: str, count: int) -> list[Transport]:
    """New connections of an address, all of them counted."""
    made = [Transport(address) for _ in range(count)]
    for transport in made:
        connections.heard(transport)
    return made


def test_beyond_a_bound_who_has_most_loses_its_most_silent_connection() -> None:
    connections = Connections(7, 3)

    def cut() -> list[list[bool]]:
        return [[transport.is_cut for transport in transports] for transports in (most, few, one)]

    one, few, most = (heard(connections, f"10.0.0.{count}", count) for count in (1, 2, 3))
    connections.heard(most[0])
    heard(connections, "10.0.0.3", 1)  # one too many of this address
    connections.heard(most[1])  # what was cut does not come back
    assert cut() == [[False, True, False], [False, False], [False]]
    heard(connections, "10.0.0.9", 2)  # one too many of all
    assert cut() == [[False, True, True], [False, False], [False]]
    connections.cut_all()
    assert cut() == [[True, True, True], [True, True], [True]]
