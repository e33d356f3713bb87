"""Symptoms as metrics have them: topics that nobody can write, lost topics, lone slaves, brokers at local addresses."""

from __future__ import annotations

import asyncio

import pytest

from namesrv.app import symptoms
from namesrv.app.symptoms import SymptomCounter, Symptoms
from namesrv.app.worker import Worker
from namesrv.core.model import BrokerKey
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.unit.namesrv.scenarios.groups import delete_topic, wipe

SLAVE, ELSEWHERE = "127.0.0.1:10912", "10.0.0.9:10911"


class Counted:
    """A fleet whose symptoms are counted on request."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.counter = SymptomCounter(self.fleet.state, Worker("reader"), self.fleet.clock.monotonic)

    def now(self) -> Symptoms:
        asyncio.run(self.counter.count())
        return self.counter.last


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_fleet_in_order_has_no_symptom(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "broker-a", ("SYNC", (1, 1, 1, 0))))
    counted.fleet.register(SLAVE, 1, topics=())
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    assert counted.now() == Symptoms()
    wipe(counted.fleet, BrokerKey(CLUSTER, "broker-b"))
    assert counted.now() == Symptoms(), "planned work leaves each topic a writable queue"


def test_a_topic_without_a_writable_queue_counts_until_it_has_one(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "%RETRY%orders", "broker-a"))
    wipe(counted.fleet)
    assert counted.now().unwritable_topics == 1
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    assert counted.now().unwritable_topics == 0


def test_a_topic_whose_master_left_cannot_be_written(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    counted.fleet.register(SLAVE, 1, topics=())
    counted.fleet.unregister(A)
    assert counted.now() == Symptoms(unwritable_topics=1, groups_without_master=1)


def test_a_topic_is_lost_with_its_last_broker_until_it_returns(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "only-here", "%RETRY%only-here", "broker-a"))
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    counted.fleet.unregister(A)
    assert counted.now().lost_topics == 1
    counted.fleet.register(A, topics=("orders", "only-here"))
    assert counted.now().lost_topics == 0


def test_a_lost_topic_counts_for_a_day(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    counted.fleet.unregister(A)
    counted.now()
    counted.fleet.clock.advance(symptoms.LOST_SECONDS - 1)
    assert counted.now().lost_topics == 1
    counted.fleet.clock.advance(1)
    assert counted.now().lost_topics == 0


def test_a_deleted_topic_is_not_lost(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    delete_topic(counted.fleet, "orders")
    assert counted.now().lost_topics == 0


@pytest.mark.parametrize(
    ("address", "alone"),
    [("127.0.0.1:1", 0), ("localhost:1", 0), ("[::1]:1", 0), ("::1:1", 0), ("0.0.0.0:1", 1), ("[::]:1", 1)],
)
def test_loopback_counts_beside_other_addresses_and_a_wildcard_always(
    counted: Counted, address: str, alone: int
) -> None:
    counted.fleet.register(address)
    assert counted.now().local_brokers == alone
    counted.fleet.register(ELSEWHERE, name="broker-b")
    assert counted.now().local_brokers == 1
