"""The pieces of a fan-out, and what is made of the answers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from broker_agent.broker_outer_api import Master, RegistrationResults
from broker_agent.fan_out import Lane
from broker_agent.name_server import RegisterBrokerResult
from namesrv_common.endpoints import Endpoint
from tests.support.patience import TIMEOUT


@pytest.fixture
def lane() -> Iterator[Lane]:
    with ThreadPoolExecutor(2) as pool:
        yield Lane(pool)


class Held:
    """Work that says when it has begun and ends when it is released."""

    def __init__(self, lane: Lane) -> None:
        self._begun, self.let_go = threading.Event(), threading.Event()
        ended = lane.submit(self._work)
        assert ended is not None
        self.ended = ended
        assert self._begun.wait(TIMEOUT)

    def _work(self) -> None:
        self._begun.set()
        assert self.let_go.wait(TIMEOUT)


def test_a_lane_takes_no_second_work_that_does_not_wait_while_the_first_runs(lane: Lane) -> None:
    held, was_busy = Held(lane), list[bool]()
    held.ended.add_done_callback(lambda _: was_busy.append(lane.busy))
    assert lane.submit(pytest.fail, after_others=False) is None
    held.let_go.set()
    held.ended.result(TIMEOUT)
    assert was_busy == [False]


def test_work_follows_what_runs_and_only_the_last_of_it(lane: Lane) -> None:
    held = Held(lane)
    replaced, done = lane.submit(pytest.fail), lane.submit(lambda: None)
    assert replaced is not None
    assert done is not None
    assert (replaced.done(), done.done()) == (True, False)
    held.let_go.set()
    done.result(TIMEOUT)
    assert held.ended.done()


def test_a_closed_lane_starts_nothing_and_names_what_still_runs(lane: Lane) -> None:
    held = Held(lane)
    dropped = lane.submit(pytest.fail)
    running = lane.close()
    assert running is held.ended
    assert dropped is not None
    assert dropped.done()
    assert lane.submit(pytest.fail) is None
    held.let_go.set()
    running.result(TIMEOUT)
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


PATIENCE_SECONDS = 20


def ordered(topic: str) -> tuple[RegisterBrokerResult, ...]:
    return (RegisterBrokerResult(Endpoint("a", 1), None, None, {topic: "broker-a:4"}),)


def test_the_first_named_master_wins_and_silence_takes_nothing_back() -> None:
    slave = RegistrationResults(lambda: True, lambda _topics: pytest.fail("no topic is ordered"))
    nobody = RegisterBrokerResult(Endpoint("a", 1), None, None)
    first = RegisterBrokerResult(Endpoint("b", 1), "10.0.0.9:10911", None)
    second = RegisterBrokerResult(Endpoint("c", 1), "10.0.0.8:10911", "10.0.0.8:10912")
    learnt = []
    for results in [(nobody,), (nobody, first, second), (nobody,), ()]:
        slave.take(results, check_order_config=False)
        learnt.append(slave.master)
    assert learnt == [None, *[Master("10.0.0.9:10911", None)] * 3]
    master = RegistrationResults(lambda: False, lambda _topics: pytest.fail("no topic is ordered"))
    master.take((first,), check_order_config=False)
    assert master.master is None


def test_order_topics_on_a_hanging_disk_delay_no_answers() -> None:
    writing, works_again, both_written = threading.Event(), threading.Event(), threading.Event()
    written: list[list[str]] = []

    def write(topics: Collection[str]) -> None:
        writing.set()
        assert works_again.wait(PATIENCE_SECONDS)
        written.append(list(topics))
        if len(written) == 2:
            both_written.set()

    results = RegistrationResults(lambda: False, write)
    results.take(ordered("First"), check_order_config=True)
    assert writing.wait(PATIENCE_SECONDS)
    for topic in ("Second", "Third"):  # come back while the first write hangs; the last answer is the one to keep
        results.take(ordered(topic), check_order_config=True)
    works_again.set()
    assert both_written.wait(PATIENCE_SECONDS)
    results.stop()
    assert written == [["First"], ["Third"]]
