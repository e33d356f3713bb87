"""Digests of what brokers report: equal exactly where the reported rows are, whatever intents are in force."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.app.upkeep import digest_page
from namesrv.app.worker import ResultT, Worker
from namesrv.core.errors import Reason
from namesrv.core.lists import FRONT, DigestedBroker, Position
from namesrv.core.model import BrokerKey, QueueNumbers, Registration, StaticMapping
from namesrv.core.pace import FEW
from namesrv.core.registrations import BrokerRegistration
from tests.support.core_fleet import CLUSTER, A, B
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.support.yield_points import AtYieldPoint, yielding
from tests.unit.namesrv.scenarios.groups import GROUP, hold, version, wipe
from tests.unit.namesrv.worlds.fleet_digests import ALL, Digests, expected, made

__all__ = ["made"]  # pytest finds the fixture by its name in this module

OTHER = BrokerKey(CLUSTER, "broker-b")


def test_a_digest_is_over_the_lines_that_the_contract_says(made: Digests) -> None:
    rows = {"b": (4, 8, 6, 0), "B": (1, 1, 4, 2), "a.b": (0, 65_535, 7, 3), "a": (4, 4, 6, 0)}
    rows |= dict.fromkeys(("\U0001f600", "\uffee"), (1, 1, 6, 0))
    made.fleet.register(topics=rows.items())
    text = "B 1 1 4 2\na 4 4 6 0\na.b 0 65535 7 3\nb 4 8 6 0\n\uffee 1 1 6 0\n\U0001f600 1 1 6 0\n"
    assert made.of_group() == expected(rows) == hashlib.sha256(text.encode()).digest()


def test_brokers_of_one_group_share_its_digest_and_have_their_own_version(made: Digests) -> None:
    made.fleet.register(A)
    made.fleet.register(B, 1, version=version(7))
    (master, digest), (slave, of_slave) = made.all()
    assert digest == of_slave == expected({"TopicTest": (4, 4, 6, 0)})
    assert (master.broker_addr, slave.broker_addr) == (A, B)
    assert (master.data_version, slave.data_version) == (version(1), version(7))


def test_labels_are_in_the_digest_of_their_own_broker_only(made: Digests) -> None:
    registration = Registration(GROUP, 0, A, version(1), {"T": (4, 4, 6, 0)}, labels=(("rack", "r2"), ("row", "7")))
    apply_now(BrokerRegistration(made.fleet.state, registration))
    made.fleet.register(B, 1)
    (_, of_master), (_, of_slave) = made.all()
    assert of_slave == expected({"T": (4, 4, 6, 0)})
    assert of_master == hashlib.sha256(of_slave + b"rack=r2\nrow=7\n").digest()


def test_a_digest_tells_mappings_apart_however_they_were_registered() -> None:
    numbers = (4, 4, 6, 0)
    static = StaticMapping("__global__", 4, 1, False, ((0, 0), (1, 1)))
    others: dict[str, Any] = {"scope": "s", "total_queues": 5, "epoch": 2, "is_dirty": True, "queue_ids": ((0, 1),)}
    digests = {expected({"T": numbers})}
    for mapping in (static, *(static._replace(**{name: value}) for name, value in others.items())):
        of_agent, of_rocketmq = Digests(), Digests()
        of_agent.fleet.register(topics=[("T", (*numbers, mapping))])
        of_rocketmq.fleet.register(topics=["T"], topic_by_topic=True, mappings={"T": mapping})
        assert of_agent.of_group() == of_rocketmq.of_group()
        digests.add(of_agent.of_group())
    assert len(digests) == 2 + len(others)


# Changes


NAMES = st.sampled_from(["T", "t", "T1", "T-1", "T.1", "%RETRY%T", "a|b"])
NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7), st.integers(0, 3))
ROWS = st.dictionaries(NAMES, NUMBERS, max_size=6)


@given(first=ROWS, second=ROWS, held=NAMES, wiped=st.booleans())
def test_digests_of_two_fleets_are_equal_exactly_if_the_reported_rows_are(
    first: dict[str, QueueNumbers], second: dict[str, QueueNumbers], held: str, *, wiped: bool
) -> None:
    plain, other = Digests(), Digests()
    plain.fleet.register(A, topics=first.items())
    plain.fleet.register(B, name="broker-b", topics=second.items())
    hold(other.fleet, held)
    other.fleet.register(B, name="broker-b", topics=reversed(second.items()))
    if wiped:
        wipe(other.fleet)
    for name, numbers in reversed(first.items()):
        other.fleet.register(A, topics=[])
        other.all()
        other.fleet.register_topic(name, {GROUP: numbers})
    if not first:
        other.fleet.register(A, topics=[])
    assert plain.of_groups() == other.of_groups() == {GROUP: expected(first), OTHER: expected(second)}
    assert (plain.of_group(GROUP) == plain.of_group(OTHER)) == (first == second)


# What is kept, and for how long


def made_anew(made: Digests) -> set[BrokerKey]:
    """The groups whose digest has to be computed, and then is."""
    missing = made.digests.missing(FRONT, ALL)
    made.all()
    return set(missing)


def test_a_digest_is_made_once_and_again_only_after_a_change_of_its_group(made: Digests) -> None:
    groups = [BrokerKey(CLUSTER, f"broker-{number}") for number in range(10)]
    for number, group in enumerate(groups):
        made.fleet.register(f"10.0.0.{number}:1", name=group.broker_name, topics=("T1", "T2"))
    assert made_anew(made) == set(groups)
    assert made_anew(made) == set()
    made.fleet.register_topic("New", {groups[3]: (4, 4, 6, 0)})
    assert made_anew(made) == {groups[3]}
    hold(made.fleet, "New")
    assert made_anew(made) == {groups[3]}
    assert made_anew(made) == set()


def test_only_digests_of_a_page_are_made_for_it(made: Digests) -> None:
    for number in range(3):
        for broker_id in range(3):
            made.fleet.register(f"10.0.{number}.{broker_id}:1", broker_id, name=f"broker-{number}")
    for last, limit, names in ((0, 2, ["broker-0"]), (0, 3, ["broker-0", "broker-1"]), (2, 3, ["broker-1"])):
        position, digests = Position(CLUSTER, "broker-0", last), made.digests
        made.fleet.state.index.digests.clear()
        missing = digests.missing(position, limit)
        assert [broker.broker_name for broker in missing] == names
        digests.compute(missing)
        page = digests.page(position, limit)
        assert page is not None
        assert len(page) == limit


# Changes while digests are computed


class ReaderAmidChanges(Worker):
    """Does work at once, with a moment for changes at each of its yield points and after it."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__("reader")
        self._moment = moment

    async def run(self, work: Callable[[], ResultT], *_: object, **__: object) -> ResultT:
        with yielding(self._moment):
            result = work()
        self._moment()
        return result


def page_amid(made: Digests, moment: Callable[[], None]) -> list[DigestedBroker]:
    return asyncio.run(digest_page(made.digests, ReaderAmidChanges(moment), FRONT, ALL))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("topics", [("T00000", "T00063"), ("Held",)], ids=["two topics", "a held one"])
def test_a_group_that_changes_meanwhile_has_the_digest_of_after_the_change(
    made: Digests, topics: tuple[str, ...], number: int
) -> None:
    names = [f"T{number:05}" for number in range(4 * FEW)]
    hold(made.fleet, "Held")
    made.fleet.register(topics=[*names, "Held"])

    def change() -> None:
        for topic in topics:
            made.fleet.register_topic(topic, {GROUP: (8, 8, 6, 0)})

    yield_point = AtYieldPoint(number, change)
    page = page_amid(made, yield_point)
    assert yield_point.has_come
    rows = {**dict.fromkeys([*names, "Held"], (4, 4, 6, 0)), **dict.fromkeys(topics, (8, 8, 6, 0))}
    assert [digest for _, digest in page] == [expected(rows)]


@pytest.mark.parametrize("number", range(3))
def test_a_group_that_goes_while_digests_are_made_is_left_out(made: Digests, number: int) -> None:
    made.fleet.register()
    made.fleet.register(B, name="broker-b")
    yield_point = AtYieldPoint(number, made.fleet.unregister)
    page = page_amid(made, yield_point)
    assert yield_point.has_come
    assert [live.broker for live, _ in page] == [OTHER]


def test_a_group_that_never_stays_still_is_given_up_after_some_tries(made: Digests) -> None:
    made.fleet.register()
    numbers = itertools.count(5)

    def change() -> None:
        made.fleet.register_topic("TopicTest", {GROUP: (next(numbers), 4, 6, 0)})

    with refuses(Reason.OVERLOADED, match="changes all the time"):
        page_amid(made, change)
    assert made.of_group() == expected({"TopicTest": (next(numbers) - 1, 4, 6, 0)})
