from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from broker_agent.calls_in_flight import CallsInFlight
from broker_agent.concurrency import OuterExecutor
from broker_agent.errors import NameServerError
from broker_agent.timing import Timing
from tests.support.fakes.registering_name_server import DEADLINE, FakeNameServer
from tests.support.virtual_clock import VirtualClock
from tests.unit.broker_agent.fan_out_harness import FanOut


def test_no_more_calls_than_the_limit_are_under_way_and_the_rest_is_counted() -> None:
    calls = CallsInFlight(2, VirtualClock(100.0))
    with calls.enter(110), calls.enter(110):
        assert calls.count == 2
        with pytest.raises(NameServerError, match="RESOURCE_EXHAUSTED TOO_MANY_CALLS: 2 calls"), calls.enter(110):
            pass
    assert (calls.count, calls.refused) == (0, 1)
    with calls.enter(110):
        assert calls.count == 1


def test_a_call_that_outlives_its_deadline_is_ended_and_one_that_does_not_is_left_alone() -> None:
    clock = VirtualClock(100.0)
    calls = CallsInFlight(2, clock)
    ended: list[str] = []
    with calls.enter(110) as late, calls.enter(120) as early:
        late.on_swept = lambda: ended.append("counted")
        late.begun(lambda: ended.append("cancelled"))
        early.begun(pytest.fail)
        clock.seconds = 111.0
        assert calls.sweep() == 0
        clock.seconds = 111.1
        assert calls.sweep() == 1
        assert calls.sweep() == 0
        assert calls.count == 1
    assert ended == ["counted", "cancelled"]


def test_a_call_that_is_swept_before_it_has_begun_ends_as_it_begins() -> None:
    clock, ended = VirtualClock(100.0), threading.Event()
    calls = CallsInFlight(1, clock)
    with calls.enter(90) as call:
        calls.sweep()
        call.begun(ended.set)
    assert ended.is_set()


def test_a_swept_call_to_a_name_server_fails_and_is_counted_as_late(name_server: Callable[..., FakeNameServer]) -> None:
    server, clock = name_server(), VirtualClock(100.0)
    calls = CallsInFlight(10, clock)
    with FanOut(server, calls=calls) as fan_out:
        fan_out.register(force=True)
        server.hang()
        target = fan_out.targets[0]
        registering = threading.Thread(target=fan_out.register, kwargs={"force": True})
        registering.start()
        server.wait_until(lambda: len(server.held_up) == 1)
        clock.seconds = Timing().clock() + 2 * DEADLINE
        calls.sweep()
        registering.join(DEADLINE)
        status = target.status()
    assert status.late_answers == 1
    assert "swept" in status.last_error


def test_work_beyond_threads_and_queue_is_refused_and_taken_again_later() -> None:
    executor, let_go = OuterExecutor(1, 1), threading.Event()

    def work() -> None:
        assert let_go.wait(DEADLINE)

    running = [executor.submit(work) for _ in range(2)]
    assert all(running)
    assert executor.submit(lambda: None) is None
    let_go.set()
    for future in running:
        assert future is not None
        future.result(DEADLINE)
    again = executor.submit(lambda: None)
    assert again is not None
    again.result(DEADLINE)
    executor.shutdown(wait=True)
    assert executor.submit(lambda: None) is None
