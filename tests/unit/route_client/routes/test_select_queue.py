"""QueueSelector and LatencyFaults: which queue the next message goes to."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from route_client import queues
from route_client.errors import NoWritableQueueError
from route_client.queues import LatencyFaults, PublishInfo, QueueSelector, not_available_millis, publish_info
from tests.support.routes.wire_routes import route
from tests.support.virtual_clock import VirtualClock

TWO_BROKERS = publish_info("TopicTest", route("broker-a", "broker-b", queues=2))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(0.0)


@pytest.fixture
def faults(clock: VirtualClock) -> LatencyFaults:
    return LatencyFaults(clock, random.Random(1))


def test_queues_are_taken_in_turn_from_a_random_one_on() -> None:
    firsts = set()
    for seed in range(20):
        selector = QueueSelector(random.Random(seed))
        taken = [selector.select_one_queue(TWO_BROKERS) for _ in range(8)]
        start = TWO_BROKERS.queues.index(taken[0])
        assert taken == [TWO_BROKERS.queues[(start + step) % 4] for step in range(8)]
        firsts.add(start)
    assert firsts == {0, 1, 2, 3}


def test_another_try_goes_to_another_broker() -> None:
    selector = QueueSelector(random.Random(0))
    for _ in range(10):
        assert selector.select_one_queue(TWO_BROKERS, "broker-a").broker_name == "broker-b"


def test_another_try_goes_to_the_same_broker_if_there_is_no_other() -> None:
    info = publish_info("TopicTest", route("broker-a"))
    assert QueueSelector(random.Random(0)).select_one_queue(info, "broker-a").broker_name == "broker-a"


def test_nothing_can_be_selected_from_nothing() -> None:
    with pytest.raises(NoWritableQueueError, match="TopicTest"):
        QueueSelector(random.Random(0)).select_one_queue(PublishInfo("TopicTest", ()))


def test_scenario_85_a_faulty_broker_is_unavailable_until_its_time_has_passed(
    clock: VirtualClock, faults: LatencyFaults
) -> None:
    faults.update_fault_item("broker-a", 3_000, 3_000)
    assert not faults.is_available("broker-a")
    assert faults.is_available("broker-b")
    clock.advance(3.0)
    assert faults.is_available("broker-a")


def test_scenario_85_available_and_quick_brokers_are_preferred_and_removal_makes_available(
    faults: LatencyFaults,
) -> None:
    faults.update_fault_item("slow", 5_000, 60_000)
    faults.update_fault_item("quick", 40, 60_000)
    assert {faults.pick_one_at_least() for _ in range(4)} == {"quick"}
    faults.update_fault_item("back", 9_000, 0)
    assert {faults.pick_one_at_least() for _ in range(4)} == {"back"}
    faults.remove("slow")
    assert faults.is_available("slow")


def test_faults_that_end_first_are_forgotten_over_a_limit(
    clock: VirtualClock, faults: LatencyFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MAX_FAULT_ITEMS", 2)
    for name in "abacd":
        clock.advance(1)
        faults.report(name, 0.0, failed=True)
    assert [faults.is_available(name) for name in "abcd"] == [True, True, False, False]


def test_the_better_half_takes_turns(faults: LatencyFaults) -> None:
    for number in range(5):
        faults.update_fault_item(f"broker-{number}", number, 60_000)
    assert Counter(faults.pick_one_at_least() for _ in range(10)) == {"broker-0": 5, "broker-1": 5}
    assert faults.pick_one_at_least({"broker-4"}) == "broker-4"
    assert faults.pick_one_at_least({"unheard of"}) is None


@pytest.mark.parametrize(
    ("latency", "left_alone"),
    [(0, 0), (50, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (14_999, 180_000), (15_000, 600_000)],
)
def test_the_longer_a_call_takes_the_longer_its_broker_is_left_alone(latency: int, left_alone: int) -> None:
    assert not_available_millis(latency) == left_alone


def test_a_failed_call_counts_as_one_of_30_seconds(clock: VirtualClock, faults: LatencyFaults) -> None:
    faults.report("broker-a", 5, failed=True)
    clock.seconds = 599.9
    assert not faults.is_available("broker-a")
    clock.seconds = 600.0
    assert faults.is_available("broker-a")


def test_faulty_brokers_are_avoided_while_there_is_another(faults: LatencyFaults) -> None:
    selector = QueueSelector(random.Random(0), faults)
    faults.report("broker-a", 15_000)
    assert {selector.select_one_queue(TWO_BROKERS).broker_name for _ in range(8)} == {"broker-b"}


def test_if_all_are_faulty_the_best_is_taken_and_the_shared_list_stays_as_it_is(faults: LatencyFaults) -> None:
    before = TWO_BROKERS.queues
    selector = QueueSelector(random.Random(0), faults)
    faults.report("broker-a", 15_000)
    faults.report("broker-b", 600)
    faults.report("of-another-topic", 550)
    taken = [selector.select_one_queue(TWO_BROKERS) for _ in range(8)]
    assert {(queue.broker_name, queue.queue_id) for queue in taken} == {("broker-b", 0), ("broker-b", 1)}
    assert TWO_BROKERS.queues == before
    assert not faults.is_available("of-another-topic"), "upstream forgets the fault of a broker that it cannot use"
