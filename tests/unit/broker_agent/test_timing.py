"""Clocks, periods and pauses of the agent."""

from __future__ import annotations

import random
import threading

import pytest
from structlog.testing import capture_logs

from broker_agent.timing import AFTER_BUG_SECONDS, ChangeThread, Debounce, PeriodicThread, RegistrationSchedule, Timing
from tests.support.patience import TIMEOUT
from tests.support.virtual_clock import VirtualClock, agent_timing


def test_registrations_begin_after_ten_seconds_and_have_jitter() -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(30.0, Timing(clock=clock, rng=random.Random(1)))
    assert schedule.next_delay() == 10
    delays: list[float] = []
    for _ in range(200):
        clock.advance(delays[-1] if delays else 10)
        delays.append(schedule.next_delay())
    assert 27 <= min(delays) < 28
    assert 32 < max(delays) <= 33
    assert sum(delays) / 200 == pytest.approx(30, abs=0.5)


def test_the_first_registration_waits_no_longer_than_a_period() -> None:
    assert RegistrationSchedule(2.0, Timing(clock=VirtualClock())).next_delay() == 2


@pytest.mark.parametrize(("took", "least", "most"), [(6.0, 21.0, 27.0), (3_600.0, 27.0, 33.0)])
def test_a_long_round_delays_no_other_and_missed_rounds_are_left_out(took: float, least: float, most: float) -> None:
    clock = VirtualClock()
    schedule = RegistrationSchedule(30.0, Timing(clock=clock, rng=random.Random(1)))
    clock.advance(schedule.next_delay() + took)
    assert least <= schedule.next_delay() <= most


def registrations(changes: list[float]) -> list[float]:
    """When a registration begins, for changes at these times."""
    coalescing, begun = Debounce(), []
    for change in [*changes, float("inf")]:
        while (due := coalescing.due()) is not None and due < change:
            coalescing.done(due)
            begun.append(due)
        coalescing.changed(change)
    return begun


A_SECOND = [number * 0.01 for number in range(100)]


@pytest.mark.parametrize(
    ("changes", "begun"),
    [
        ([5.0], [5.1]),
        ([0.0] * 100, [0.1]),
        (A_SECOND, [A_SECOND[-1] + 0.1]),
        ([number * 0.01 for number in range(300)], [1.5, 3.0]),
        ([0.0, 0.2, 0.4], [0.1, 1.1]),
    ],
    ids=["one", "at once", "within a second", "without an end", "after a registration"],
)
def test_changes_within_a_moment_are_one_registration(changes: list[float], begun: list[float]) -> None:
    assert registrations(changes) == pytest.approx(begun, abs=0.02)


def test_changes_before_the_start_are_registered_and_none_after_the_end() -> None:
    called = threading.Semaphore(0)
    changes = ChangeThread(called.release, Timing())
    changes.changed()
    changes.start()
    assert called.acquire(timeout=TIMEOUT)
    changes.stop()
    changes.changed()
    assert not called.acquire(blocking=False)


def test_a_registration_that_fails_does_not_end_the_thread() -> None:
    calls: list[int] = []
    called = threading.Semaphore(0)

    def fail() -> None:
        calls.append(1)
        called.release()
        raise ZeroDivisionError

    with capture_logs() as logs:
        changes = ChangeThread(fail, Timing())
        changes.start()
        for _ in range(2):
            changes.changed()
            assert called.acquire(timeout=TIMEOUT)
        changes.stop()
    assert [entry["event"] for entry in logs] == ["registration_of_changes_failed"] * 2


def test_work_that_raises_is_logged_and_done_again_later() -> None:
    time, times = VirtualClock(), list[float]()

    def work() -> float:
        times.append(time.seconds)
        raise KeyError

    thread = PeriodicThread("broker-agent-test", work, agent_timing(time))
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

    thread = PeriodicThread("broker-agent-test", work, Timing())
    thread.stop()
    thread.start()
    thread.join(10)
    assert done == []
