from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_agent.concurrency import OuterExecutor
from broker_agent.name_server import TargetLane
from tests.support.patience import TIMEOUT


@pytest.fixture
def pool() -> Iterator[OuterExecutor]:
    pool = OuterExecutor(2, 2)
    yield pool
    pool.shutdown(wait=True)


class Held:
    """Work that says when it has begun and ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.let_go.wait(TIMEOUT)


def test_a_lane_takes_no_second_work_while_the_first_runs(pool: OuterExecutor) -> None:
    lane, held = TargetLane(pool), Held()
    assert lane.offer(held)
    assert held.begun.wait(TIMEOUT)
    assert not lane.offer(pytest.fail)
    held.let_go.set()


def test_work_that_was_put_follows_what_runs_and_only_the_last_of_it(pool: OuterExecutor) -> None:
    lane, held, done = TargetLane(pool), Held(), threading.Event()
    lane.put(held)
    assert held.begun.wait(TIMEOUT)
    assert lane.put(pytest.fail)
    assert lane.put(done.set)
    assert not done.is_set()
    held.let_go.set()
    assert done.wait(TIMEOUT)


def test_a_closed_lane_starts_nothing_and_names_what_still_runs(pool: OuterExecutor) -> None:
    lane, held = TargetLane(pool), Held()
    lane.put(held)
    assert held.begun.wait(TIMEOUT)
    lane.put(pytest.fail)
    running = lane.close()
    assert running is not None
    assert not lane.offer(pytest.fail)
    assert not lane.put(pytest.fail)
    held.let_go.set()
    running.result(TIMEOUT)
    assert lane.close() is None


def test_work_that_raises_is_logged_and_the_lane_goes_on(pool: OuterExecutor) -> None:
    lane, done = TargetLane(pool), threading.Event()

    def broken() -> None:
        lane.put(done.set)
        raise ZeroDivisionError

    with capture_logs() as logs:
        lane.put(broken)
        assert done.wait(TIMEOUT)
    assert [entry["event"] for entry in logs] == ["registration_task_failed"]


def test_whoever_waits_is_told_when_work_has_ended_or_will_never_begin(pool: OuterExecutor) -> None:
    lane, held = TargetLane(pool), Held()
    ended: list[str] = []
    freed = threading.Event()

    def first_ended() -> None:
        assert not lane.busy
        ended.append("first")
        freed.set()

    lane.put(held, first_ended)
    assert held.begun.wait(TIMEOUT)
    assert not lane.offer(pytest.fail, pytest.fail)
    lane.put(pytest.fail, lambda: ended.append("replaced"))
    lane.put(pytest.fail, lambda: ended.append("dropped"))
    assert ended == ["replaced"]
    lane.close()
    assert ended == ["replaced", "dropped"]
    held.let_go.set()
    assert freed.wait(TIMEOUT)
    assert ended == ["replaced", "dropped", "first"]
