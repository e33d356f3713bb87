"""The pieces of a fan-out, and what is made of the answers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from broker_agent.broker_outer_api import RegistrationResults
from broker_agent.fan_out import CopyOnWriteList, CountDownLatch, Lane, call_all
from broker_agent.name_server import Master, NamesrvTarget, RegisterBrokerResult
from namesrv_common.endpoints import Endpoint
from tests.support.agents import target_of
from tests.support.patience import TIMEOUT


def test_a_waiter_goes_on_after_the_last_task_or_when_its_time_is_over() -> None:
    latch = CountDownLatch(2)
    latch.count_down()
    assert not latch.wait(0)
    last = threading.Timer(0.05, latch.count_down)
    last.start()
    assert latch.wait(threading.TIMEOUT_MAX), "the last task wakes it, or the time of this test runs out"
    last.join(TIMEOUT)


def test_a_closed_list_takes_nothing_more_and_says_so() -> None:
    items: CopyOnWriteList[int] = CopyOnWriteList()
    assert items.append(1)
    assert items.close() == (1,)
    assert not items.append(2)
    assert items.close() == (1,)


@pytest.fixture
def target() -> Iterator[NamesrvTarget]:
    """A name server that is never called."""
    made = target_of(Endpoint("127.0.0.1", 1))
    yield made
    made.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    with ThreadPoolExecutor(2) as pool:
        yield Lane(pool)


class Held:
    """Work that says when it has begun and ends when it is released."""

    def __init__(self, lane: Lane) -> None:
        self._begun, self.let_go = threading.Event(), threading.Event()
        self.was_free_at_end = False
        self._lane = lane
        lane.submit(self._work, self._end)
        assert self._begun.wait(TIMEOUT)

    def _work(self) -> None:
        self._begun.set()
        assert self.let_go.wait(TIMEOUT)

    def _end(self) -> None:
        self.was_free_at_end = not self._lane.busy


def test_a_busy_lane_takes_only_work_that_waits_and_the_last_of_it(lane: Lane, target: NamesrvTarget) -> None:
    held, replaced, done = Held(lane), threading.Event(), threading.Event()
    assert not lane.submit(pytest.fail, pytest.fail, after_others=False)
    with capture_logs() as logs:
        assert call_all({target: lane}, lambda _: pytest.fail("a second call"), TIMEOUT) == ()
    assert [entry["event"] for entry in logs] == ["call_still_in_flight"]
    assert lane.submit(pytest.fail, replaced.set)
    assert lane.submit(done.set)
    assert replaced.is_set()
    assert not done.is_set()
    held.let_go.set()
    assert done.wait(TIMEOUT)


def test_a_closed_lane_starts_nothing_and_names_what_still_runs(lane: Lane) -> None:
    held, dropped = Held(lane), threading.Event()
    lane.submit(pytest.fail, dropped.set)
    running = lane.close()
    assert running is not None
    assert dropped.is_set()
    assert not lane.submit(pytest.fail, pytest.fail)
    held.let_go.set()
    running.result(TIMEOUT)
    assert held.was_free_at_end
    assert lane.close() is None


def test_work_that_raises_is_logged_and_the_lane_goes_on(lane: Lane) -> None:
    done = threading.Event()

    def broken() -> None:
        lane.submit(done.set)
        raise ZeroDivisionError

    with capture_logs() as logs:
        lane.submit(broken)
        assert done.wait(TIMEOUT)
    assert [entry["event"] for entry in logs] == ["registration_task_failed"]


def test_a_late_answer_is_logged_and_not_applied(lane: Lane, target: NamesrvTarget) -> None:
    let_go, over = threading.Event(), threading.Event()
    with capture_logs() as logs:
        assert call_all({target: lane}, lambda _: let_go.wait(TIMEOUT), timeout_seconds=0) == ()
        let_go.set()
        lane.submit(over.set)
        assert over.wait(TIMEOUT)
    assert [(entry["event"], entry["endpoint"]) for entry in logs] == [("late_answer_not_applied", "127.0.0.1:1")]
    assert target.state.report().late_answer_count == 1


def ordered(topic: str) -> tuple[RegisterBrokerResult, ...]:
    return (RegisterBrokerResult(Endpoint("a", 1), None, {topic: "broker-a:4"}),)


def test_the_first_named_master_wins_and_silence_takes_nothing_back() -> None:
    slave = RegistrationResults(lambda: True, lambda _topics: pytest.fail("no topic is ordered"))
    nobody = RegisterBrokerResult(Endpoint("a", 1))
    first = RegisterBrokerResult(Endpoint("b", 1), Master("10.0.0.9:10911", None))
    second = RegisterBrokerResult(Endpoint("c", 1), Master("10.0.0.8:10911", "10.0.0.8:10912"))
    learnt = []
    for results in [(nobody,), (nobody, first, second), (nobody,), ()]:
        slave.take(results)
        learnt.append(slave.master)
    assert learnt == [None, *[Master("10.0.0.9:10911", None)] * 3]
    master = RegistrationResults(lambda: False, lambda _topics: pytest.fail("no topic is ordered"))
    master.take((first,))
    assert master.master is None


def test_order_topics_on_a_hanging_disk_delay_no_answers() -> None:
    writing, works_again, both_written = threading.Event(), threading.Event(), threading.Event()
    written: list[list[str]] = []

    def write(topics: Collection[str]) -> None:
        writing.set()
        assert works_again.wait(TIMEOUT)
        written.append(list(topics))
        if len(written) == 2:
            both_written.set()

    results = RegistrationResults(lambda: False, write)
    results.take(ordered("First"))
    assert writing.wait(TIMEOUT)
    for topic in ("Second", "Third"):  # come back while the first write hangs; the last answer is the one to keep
        results.take(ordered(topic))
    works_again.set()
    assert both_written.wait(TIMEOUT)
    results.stop()
    assert written == [["First"], ["Third"]]
