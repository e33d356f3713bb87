from __future__ import annotations

import threading

from structlog.testing import capture_logs

from broker_agent.timing import AFTER_BUG_SECONDS, PeriodicThread
from tests.support.virtual_clock import VirtualClock


def test_work_is_done_after_the_first_delay_and_then_as_often_as_it_says() -> None:
    time, times = VirtualClock(), list[float]()

    def work() -> float:
        times.append(time.seconds)
        return 7.0

    thread = PeriodicThread("broker-agent-test", work, first_delay=3.0, wait=time.wait)
    thread.start()
    time.run(25.0)
    thread.stop()
    thread.join(10)
    assert times == [1_003.0, 1_010.0, 1_017.0, 1_024.0]


def test_work_that_raises_is_logged_and_done_again_later() -> None:
    time, times = VirtualClock(), list[float]()

    def work() -> float:
        times.append(time.seconds)
        raise KeyError

    thread = PeriodicThread("broker-agent-test", work, wait=time.wait)
    with capture_logs() as logs:
        thread.start()
        time.run(AFTER_BUG_SECONDS)
        thread.stop()
        thread.join(10)
    assert times == [1_000.0, 1_000.0 + AFTER_BUG_SECONDS]
    assert [entry["event"] for entry in logs] == ["periodic_work_failed"] * 2


def test_a_thread_that_is_stopped_before_its_start_does_nothing() -> None:
    done: list[int] = []

    def work() -> float:
        done.append(1)
        return 1.0

    thread = PeriodicThread("broker-agent-test", work)
    thread.stop()
    thread.start()
    thread.join(10)
    assert done == []


def test_work_may_stop_its_own_thread() -> None:
    ended = threading.Event()

    def work() -> float:
        thread.stop()
        thread.join(10)
        ended.set()
        return 0.0

    thread = PeriodicThread("broker-agent-test", work)
    thread.start()
    assert ended.wait(10)
    thread.join(10)
